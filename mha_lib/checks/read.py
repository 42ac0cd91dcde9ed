"""Where to read again: the headings of the notebooks that verdicts point to, each once."""

from urllib.parse import quote

FILES = {
    1: "01_single_head_attention",
    2: "02_scaling",
    3: "03_masking",
    4: "04_head_splitting",
    5: "05_output_projection",
    6: "06_four_spellings",
    7: "07_cost",
    8: "08_trained_heads",
    9: "09_positions",
    10: "10_decoding",
    11: "11_grouped_heads",
    12: "12_blockwise",
    13: "13_two_layers",
    14: "14_real_heads",
}


class Heading(str):
    """A heading of a notebook: as text what a verdict shows, with a link for where there are links."""

    chapter: int
    title: str

    def __new__(cls, chapter: int, title: str) -> "Heading":
        self = super().__new__(cls, f"notebook {chapter:02}, “{title}”")
        self.chapter, self.title = chapter, title
        return self

    @property
    def link(self) -> str:
        """The address from a notebook in exercises/ or solutions/, as JupyterLab names headings."""
        return f"../notebooks/{FILES[self.chapter]}.ipynb#{quote(self.title.replace(' ', '-'))}"


# Chapter 1
DOT = Heading(1, "A score is a dot product")
SOFTMAX = Heading(1, "Softmax turns a row of scores into weights")
AVERAGE = Heading(1, "The output is a weighted average")
PARTS = Heading(1, "One function")
PROJECT = Heading(1, "Three projections")
# Chapter 2
GROWS = Heading(2, "A dot product grows")
SCALE = Heading(2, "Divide by the square root")
STABLE = Heading(2, "A softmax that does not overflow")
# Chapter 3
FAIL = Heading(3, "Ways that fail")
INFINITY = Heading(3, "Minus infinity, before the softmax")
CAUSAL = Heading(3, "The causal mask")
PADDING = Heading(3, "Padding")
WINDOW = Heading(3, "A sliding window")
EMPTY = Heading(3, "A row with nothing to attend to")
MEANING = Heading(3, "What does True mean?")
# Chapter 4
CUT = Heading(4, "Cut the features, not the sentence")
FRONT = Heading(4, "The head axis goes in front")
BACK = Heading(4, "Back again")
LOOP = Heading(4, "A loop over heads, or one product")
HEAD_AXIS = Heading(4, "The mask needs the head axis")
ONE = Heading(4, "One softmax, one focus")
# Chapter 5
SUM = Heading(5, "A sum over heads")
MIX = Heading(5, "W_O mixes")
DROP = Heading(5, "Dropout on the weights")
LAYER = Heading(5, "The whole layer")
CLONES = Heading(5, "Four linears, cloned")
TORCH = Heading(5, "The same as PyTorch's")
# Chapter 6
FOUR = Heading(6, "One list of four")
STEPS = Heading(6, "A method for each step")
KEY = Heading(6, "The key bias does nothing")
DIFFERS = Heading(6, "What differs")
# Chapter 7
COUNT = Heading(7, "Count the multiplications")
TABLE = Heading(7, "The table of weights")
BUILDS = Heading(7, "When it builds one after all")
# Chapter 8
LOOKS = Heading(8, "What do the heads look at?")
OFF = Heading(8, "Switch a head off")
TASK = Heading(8, "A task with two questions")
TWO = Heading(8, "One head, two, four")
# Chapter 9
ADD_TABLE = Heading(9, "Add a table")
TURN = Heading(9, "Turn instead of adding")
WHO_TURNS = Heading(9, "Turn what asks and what is asked")
LAYOUTS = Heading(9, "Two layouts of the pairs")
# Chapter 10
KEPT = Heading(10, "What may be kept")
ROW = Heading(10, "One row at a time")
PREFILL = Heading(10, "Prefill, then step")
CHUNK = Heading(10, "Masks that are not square")
GO_ON = Heading(10, "Positions go on")
WEIGHS = Heading(10, "What it weighs")
# Chapter 11
WHICH = Heading(11, "repeat_interleave or repeat")
GROUPED = Heading(11, "The layer")
FEWER = Heading(11, "A trained layer with fewer key heads")
# Chapter 12
RUNNING = Heading(12, "The running softmax")
FOUR_WAYS = Heading(12, "Four ways to get it wrong")
DARK = Heading(12, "Blocks that are never visited")
HALVES = Heading(12, "Two halves of the keys")
# Chapter 13
KEEP = Heading(13, "Keep what was there")
NORM = Heading(13, "The norm, in front")
BLOCK = Heading(13, "And a feed-forward network")
TWO_HEADS = Heading(13, "Find the two heads")
ONE_OFF = Heading(13, "Switch one off")
# Chapter 14
REAL_LAYER = Heading(14, "One layer, in yours")
REAL_INSIDE = Heading(14, "Your attention inside")
REAL_TOKENS = Heading(14, "A model in a folder")
REAL_CENSUS = Heading(14, "Seventy-two heads at once")
REAL_OFF = Heading(14, "Switch heads off")
