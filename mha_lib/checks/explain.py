"""What an exception means: the learner's line, what met there, and what it says in plain words."""

import re
import tokenize
from dataclasses import dataclass, field
from io import StringIO

from torch import Tensor, nn

from mha_lib.checks.guard import is_library, line_of, own_frames


@dataclass(frozen=True)
class Known:
    """An everyday exception: the type or types, what its text holds, an id, and what it means.

    inside: what it means where a function that the learner's line calls raises it; default: says.
    """

    kind: type | tuple[type, ...]
    text: str
    id: str
    says: str
    inside: str = ""


@dataclass
class Explained:
    """What is known of an exception."""

    id: str
    says: str
    facts: dict[str, str] = field(default_factory=dict)


KNOWN = (
    Known((TypeError, AttributeError), r"torch\.return_types\.", "max_returns_pair",
          "Along an axis, max, min and median return a pair, the numbers and their places: take one of the two. "
          "amax and amin return the numbers alone."),
    Known(RuntimeError, r"Boolean value of Tensor|bool value of Tensor", "truth_of_tensor",
          "A whole tensor is asked whether it is true, by if, and, or, not, or by a chain like 0 <= d < n; it has no "
          "single truth value. Two conditions are joined with &, each in brackets.",
          inside="A function that your line calls wants one number, or one True or False, and gets a whole tensor."),
    Known(Exception, r"bitwise_xor|unsupported operand type\(s\) for \^|\"bitwise_xor", "caret_for_power",
          "The sign ^ is no power in Python: it compares bits. The power is written with two stars."),
    Known(Exception, r"(softmax|mean|std|var|norm).*(not implemented for '(Bool|Long|Int)'|Input dtype should be|"
          r"Got a?:? ?(Bool|Long|Int))|_softmax.*'(Bool|Long)'", "not_for_this_dtype",
          "This operation works on floats, and gets integers or True and False."),
    Known(Exception, r"\"(b|add|badd)?mm\w*\" not implemented for '(Bool|Long|Int)'|\"(dot|addmv)\w*\" not implemented",
          "product_of_integers",
          "A product of matrices takes floats, and gets integers or True and False."),
    Known(Exception, r"bitwise_(and|or|not).*not implemented for '(Float|Double)'|'(Float|Double)'.*bitwise|"
          r"bitwise_not_cpu|bitwise_and_cpu", "bits_of_floats",
          "The signs &, | and ~ join tensors of True and False, and one of these holds floats."),
    Known(RuntimeError, r"Subtraction, the `-` operator, with a bool tensor|Negation, the `-` operator",
          "minus_on_bools",
          "True and False cannot be subtracted or negated with a minus sign."),
    Known(RuntimeError, r"Can't call numpy\(\) on Tensor that requires grad", "numpy_on_gradients",
          "NumPy gets a tensor whose gradients are followed, and would cut them off. Stay with tensors."),
    Known(RuntimeError, r"leaf Variable that requires grad", "parameter_changed_in_place",
          "A parameter is written to while autograd watches. Changing it by hand is no part of a computation."),
    Known(RuntimeError, r"view size is not compatible", "view_refused",
          "view does not move numbers in memory, and after an exchange of axes they lie in another order."),
    Known(RuntimeError, r"shape '.*' is invalid for input of size", "sizes_do_not_multiply",
          "The sizes asked for do not multiply to the number of cells there are."),
    Known(RuntimeError, r"mat1 and mat2 shapes cannot be multiplied", "linear_does_not_fit",
          "In a product of matrices, by @ or in a linear, the last axis of the first is not as long as the axis of "
          "the second that it meets: two sizes may be exchanged, or a tensor is not the one meant for it."),
    Known(RuntimeError,
          r"Expected size for first two dimensions of batch2|must match the size of tensor b|size of tensor a",
          "sizes_do_not_meet",
          "Two tensors meet whose sizes differ on an axis that they must share."),
    Known(RuntimeError, r"expected (scalar type|m1 and m2 to have the same dtype)|must have the same dtype",
          "dtypes_differ",
          "Two tensors of different dtypes meet."),
    Known(RuntimeError, r"Sizes of tensors must match except in dimension", "joined_on_wrong_axis",
          "Tensors are joined along one axis and differ on another. Is it the axis on which they lie side by side?"),
    Known(RuntimeError, r"Tensors must have same number of dimensions", "joined_axes_differ",
          "Tensors are joined that do not have the same number of axes. An index, or the largest along an axis, "
          "takes an axis away."),
    Known(RuntimeError, r"expand\(.*\): the number of sizes provided", "written_axes",
          "A tensor is written into a place with fewer axes. On the left, a number as index takes an axis away, and "
          "a slice keeps it."),
    Known(RuntimeError, r"The expanded size of the tensor|shape mismatch: value tensor", "stretched_sizes",
          "A tensor is stretched, or written into a place, of another size. Only an axis of size 1 can be stretched."),
    Known(RuntimeError, r"split_with_sizes expects|split expects at least", "split_takes_a_size",
          "split takes the size of a piece, not how many pieces there are."),
    Known(RuntimeError, r"(Error\(s\) in loading state_dict)", "state_dict_names",
          "The names or sizes of the two modules' parameters differ, so one cannot simply be loaded into the other; "
          "the message lists them."),
    Known(RuntimeError, r"number of dims don't match in permute|permute\(sparse_coo\)|Dimension specified as|"
          r"is not equal to the number of dimensions", "permute_axes",
          "permute must name every axis once, and there are not as many as it names."),
    Known(IndexError, r"Dimension out of range", "axis_does_not_exist",
          "An axis is named that the tensor does not have."),
    Known(IndexError, r"too many indices for tensor", "too_many_indices",
          "The tensor has fewer axes than are asked of it."),
    Known(IndexError, r"The shape of the mask .* does not match the shape of the indexed tensor", "mask_as_index",
          "Square brackets want a mask as large as the tensor: they do not stretch axes of size 1, as masked_fill "
          "and where do."),
    Known(RuntimeError, r"\.size\(\)|invalid combination of arguments", "arguments_of_torch",
          "A function of PyTorch gets arguments that it does not take, in kind or number."),
    Known(TypeError, r"sqrt\(\): argument|rsqrt\(\): argument", "tensor_function_on_number",
          "This function of torch takes a tensor, and a size is a plain Python number."),
    Known(TypeError, r"'Linear' object is not subscriptable|'(\w+)' object is not subscriptable", "not_subscriptable",
          "Square brackets stand behind something that has no entries."),
    Known(TypeError, r"(cat|stack)\(\): argument 'tensors' .*not Tensor", "join_wants_a_list",
          "cat and stack join a list of tensors, and get something else: one tensor alone, or things that are no "
          "tensors."),
    Known(TypeError,
          r"(linear|matmul|softmax)\(\).*argument 'input'|\(\): argument '\w+' \(position \d+\) must be Tensor, not",
          "not_a_tensor_here",
          "A function that takes a tensor gets something else, such as a module or None."),
    Known(TypeError, r"'float' object is not callable|'int' object is not callable", "number_called",
          "A number is called as if it were a function. Is a * missing in front of a bracket, or is a rate kept "
          "where its module should be?"),
    Known(TypeError, r"'Tensor' object is not callable", "tensor_called",
          "A tensor is called as if it were a function: is an operator missing in front of a bracket?",
          inside="A function that your line calls wants a function or a module there, and gets a tensor: do the "
          "arguments stand in their places?"),
    Known(TypeError, r"'[\w.]+' object is not callable", "not_callable",
          "Something is called that is no function: look at what stands in front of the bracket."),
    Known(TypeError, r"missing (\d+) required (positional|keyword-only) argument", "argument_missing",
          "A call leaves out an argument that must be given."),
    Known(TypeError, r"takes (from )?\d+ (to \d+ )?positional arguments? but \d+ (was|were) given",
          "too_many_arguments",
          "A call gives more arguments than the function takes. In a class the first of them is self."),
    Known(TypeError, r"got an unexpected keyword argument", "unknown_argument",
          "A call names an argument that the function does not have."),
    Known(TypeError, r"takes no arguments|object.__init__\(\) takes exactly", "constructor_missing",
          "The class takes no arguments: its constructor is missing, or its name is misspelt (two underscores on "
          "each side of init)."),
    Known(TypeError, r"cannot assign '.*' (object to|as) ", "cannot_assign",
          "A module's parameter or list is replaced by something of another kind. Write into it, do not replace it."),
    Known(TypeError, r"unsupported operand type\(s\) for (.+): '(.+)' and '(.+)'", "operands",
          "Two things meet that this operator does not join: look at their kinds."),
    Known(AttributeError, r"cannot assign (module|parameters?) before Module.__init__|cannot assign module",
          "super_missing",
          "A part is stored in the module before nn.Module's own constructor has run."),
    Known(AttributeError, r"'NoneType' object has no attribute", "none_has_no_attribute",
          "Something is None here, and an attribute is asked of it."),
    Known(AttributeError, r"'bool' object has no attribute", "one_truth_for_a_tensor",
          "One plain True or False stands where a tensor is wanted. Cells are compared by == and !=; is and not "
          "give one answer for all of them."),
    Known(AttributeError,
          r"'(int|float|list|str)' object has no attribute '(shape|size|dim|dtype|mT|T|transpose|view|reshape|"
          r"unsqueeze|float|flatten|softmax|masked_fill|tril)'", "no_tensor_here",
          "A plain number, list or text stands where a tensor is wanted.",
          inside="A function that your line calls wants a tensor there, and gets a plain number, list or text: do "
          "the arguments stand in their places?"),
    Known(AttributeError, r"'Dropout' object has no attribute", "dropout_for_a_tensor",
          "A dropout stands where a tensor is wanted: is the mask left out in front of it? Name the argument."),
    Known((AttributeError, TypeError),
          r"'tuple' object has no attribute|^expected Tensor as element \d+ .*but got tuple", "pair_for_a_tensor",
          "A pair stands where a tensor is wanted: a function that returns two things needs two names, or an index."),
    Known(TypeError, r"^expected Tensor as element \d+ .*but got", "joined_no_tensor",
          "Among the things that are joined is one that is no tensor. The sum of an empty list, for example, is the "
          "number 0."),
    Known((ValueError, TypeError, RuntimeError),
          r"only one element tensors can be converted|elements cannot be converted to Scalar|"
          r"only .* can be converted to Python scalars", "one_number_wanted",
          "A whole tensor is given where one number is wanted: by math, by int() or float(), or as one entry of a "
          "tensor that is made. torch has functions of the same names for tensors."),
    Known(RuntimeError, r"Expected tensor for argument #1 'indices'", "indices_are_floats",
          "An embedding gets floats. The numbers of tokens are whole: are these scores, where their places belong?"),
    Known(IndexError, r"index out of range in self", "token_unknown",
          "An embedding gets the number of a token that it does not have. Where does that number come from?"),
    Known(IndexError, r"is out of bounds for|list index out of range|tuple index out of range", "index_behind_the_end",
          "An index lies behind the end: places run from 0 to one less than there are."),
    Known(RuntimeError, r"masked_fill_? only supports boolean masks", "fill_wants_booleans",
          "masked_fill wants True and False, and gets integers. On integers ~ flips every bit; mask == 0 finds the "
          "blocked cells of both kinds."),
    Known(TypeError, r"(masked_fill|where|full|full_like|fill_)\(\).*got \(.*\bstr\b", "fill_is_text",
          "A number is given as text, in quotes. float turns such a text into a number, and math.inf is one."),
    Known(TypeError, r"masked_fill\(\).*got \((mask=)?bool", "one_truth_for_a_mask",
          "One True or False stands in place of a mask. If the mask is None, comparing it gives one False: ask for "
          "None first."),
    Known(RuntimeError, r"is a view and is being modified inplace", "piece_changed_in_place",
          "Your code writes into a piece that chunk, split or unbind made. Where gradients are followed, such pieces "
          "are for reading alone."),
    Known(RuntimeError, r"modified by an inplace operation", "changed_in_place",
          "Your code writes into a tensor that the gradients still need. Make a new one instead."),
    Known(TypeError, r"'float' object cannot be interpreted as an integer|slice indices must be integers",
          "whole_number_wanted",
          "A whole number is wanted, and a float is given: / makes floats, // whole numbers."),
    Known(AttributeError, r"'(\w+)' object has no attribute '(\w+)'", "no_such_attribute",
          "This object has no such attribute: it was never stored under that name, or the name is misspelt."),
    Known(NameError, r"name '(\w+)' is not defined", "name_unknown",
          "A name is used that nothing defines here: it is misspelt, self. is missing in front of it, or only the "
          "chapter defines it."),
    Known(UnboundLocalError, r".", "name_before_value", "A variable is used before it has a value on this path."),
    Known(TypeError, r"not supported between instances of", "compared_kinds",
          "Two things of kinds that have no order are compared, such as a module where a number is wanted.",
          inside="A function that your line calls wants a number there, and gets something else."),
    Known(TypeError, r"argument of type '\w+' is not (iterable|a container)", "nothing_to_search",
          "in searches a list, a text or a dictionary, and this is none. hasattr asks a module for a name."),
    Known(TypeError, r"received an invalid combination of arguments", "arguments_of_torch",
          "A function of PyTorch gets arguments that it does not take, in kind or number."),
    Known(ValueError, r"operands could not be broadcast together", "sizes_do_not_meet",
          "Two tensors meet whose sizes differ on an axis that they must share."),
    Known(TypeError, r"(view|reshape|permute|expand|repeat|transpose|split|unflatten)\(\): argument",
          "sizes_are_not_numbers",
          "A function that takes sizes or axes gets something that is no whole number, such as a tensor or a float."),
    Known(RuntimeError, r"The shape of the .*attn_mask is", "attn_mask_shape",
          "nn.MultiheadAttention refuses the shape of the mask it gets; it wants every axis in full."),
    Known(ZeroDivisionError, r".", "division_by_zero", "A number is divided by 0."),
    Known(KeyError, r".", "key_unknown", "A dictionary is asked for a key that it does not hold."),
    Known(ValueError, r"not enough values to unpack|too many values to unpack", "unpacking",
          "The number of names on the left differs from the number of things on the right: does the tensor have as "
          "many axes as you name?"),
    Known(TypeError, r"must be real number, not", "number_wanted",
          "A plain number is wanted, and something else is given: the functions of math take one number."),
    Known(TypeError, r"argument '\w+' (\(position \d+\) )?must be (float|int|bool|Number), not", "number_wanted",
          "A number is wanted there, and something else is given."),
    Known(RuntimeError, r"input tensor must have at least 2 dimensions", "table_wanted",
          "This function wants a table, a tensor of two axes at least."),
    Known(RuntimeError, r"Number of dimensions of repeat dims", "repeat_axes", "repeat wants a number for every axis."),
    Known(RuntimeError, r"split_size can only be 0", "pieces_of_nothing", "Pieces of size 0 are asked for."),
)


def explain(error: BaseException) -> Explained:
    """Return an id, a sentence and facts for an exception of a learner's code."""
    facts = {}
    frames = own_frames(error)
    line = ""
    if frames:
        frame, number = frames[-1]
        line = line_of(frame, number)
        if line:
            facts["raised by"] = f"{line}   (line {number} of your cell)"
        met = _what_met(frame, line)
        if met:
            facts["there"] = met
    text, inside = text_of(error), bool(frames) and frames[-1][0] is not _last_frame(error)
    for known in KNOWN:
        if isinstance(error, known.kind) and re.search(known.text, text):
            return Explained(*_in_context(known, error, frames), facts)
    if isinstance(error, AssertionError) and frames and not inside:
        return Explained("own_assertion", "An assert of your own code does not hold on this input.", facts)
    if re.match(r"raise\b", line) and not inside:
        return Explained("refused_by_you", f"Your own code refuses this input with {type(error).__name__}.", facts)
    if inside and isinstance(error, (ValueError, RuntimeError, TypeError, IndexError, AssertionError)):
        says = "A function that your line calls refuses what it gets. Its own words say what does not fit."
        return Explained("refused_by_library", says, facts)
    return Explained("raised", f"Your code raised {type(error).__name__}.", facts)


def _in_context(known: Known, error: BaseException, frames: list) -> tuple[str, str]:
    """Return the id and sentence of an exception; others where the same words of Python mean something else."""
    by_library = bool(frames) and frames[-1][0] is not _last_frame(error)
    if known.id == "unpacking" and by_library:
        says = "What your code gave back was taken apart where it is used, and it has not as many parts as asked for."
        return "unpacked_elsewhere", says
    if known.id == "too_many_arguments" and re.match(r"(ones|zeros|empty|rand|randn)\(\) takes", text_of(error)):
        return next((k.id, k.says) for k in KNOWN if k.id == "sizes_are_not_numbers")
    return known.id, by_library and known.inside or known.says


def its_words(error: BaseException) -> str:
    """Return the type of an exception and its message; all of it where a later line says what is wrong."""
    text = text_of(error)
    if text.startswith("Error(s) in loading"):
        shown = " ".join(part.strip() for part in text.splitlines())[:400]
    else:
        shown = next((part for part in text.splitlines() if part.strip()), "")[:160]
    return f"{type(error).__name__}: {shown}".rstrip(": ")


def is_stub(error: BaseException | None) -> bool:
    """Say whether an exception is the stub of an exercise, and not PyTorch's word for what it cannot do."""
    if not isinstance(error, NotImplementedError):
        return False
    frames = own_frames(error)
    if error.__traceback__ is None or not frames or is_library(_last_frame(error).f_code.co_filename):
        return False
    line = line_of(*frames[-1])
    return line.startswith("raise") if line else "not implemented for" not in text_of(error)


def _last_frame(error: BaseException):
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    return last.tb_frame


def text_of(error: BaseException) -> str:
    """Return the message of an exception, also of one whose message cannot be made."""
    try:
        return str(error)
    except Exception:
        return "(its message cannot be printed)"


def _what_met(frame, line: str) -> str:
    """Name the tensors and modules that a line speaks of, with their shapes."""
    words = []
    for name in _names(line):
        thing = _look_up(frame, name)
        if isinstance(thing, Tensor):
            words.append(f"{name} {tuple(thing.shape)}")
        elif isinstance(thing, nn.Linear):
            words.append(f"{name} takes {thing.in_features} features, gives {thing.out_features}")
        elif isinstance(thing, nn.Module) and "." not in name and name != "self":
            words.append(f"{name} is a module, {type(thing).__name__}")
        elif isinstance(thing, (int, float, bool)) or thing is None and name in frame.f_locals:
            words.append(f"{name} = {thing}")
    return ", ".join(dict.fromkeys(words))


def _names(line: str) -> list[str]:
    """Return the names and dotted names of a line, in order."""
    names: list[str] = []
    dotted = False
    try:
        for token in tokenize.generate_tokens(StringIO(line).readline):
            if token.type == tokenize.NAME:
                if dotted and names:
                    names.append(f"{names[-1]}.{token.string}")
                else:
                    names.append(token.string)
            dotted = token.string == "."
    except (tokenize.TokenError, IndentationError, SyntaxError):
        pass
    return names


def _look_up(frame, dotted: str):
    first, *rest = dotted.split(".")
    thing = frame.f_locals.get(first, _MISSING)
    for name in rest:
        if not isinstance(thing, nn.Module):
            return _MISSING
        held = vars(thing)  # without its constructor having run, a module has no parts to ask for
        places = (held.get("_modules", {}), held.get("_parameters", {}), held)
        thing = next((place[name] for place in places if name in place), _MISSING)
    return thing


_MISSING = object()
