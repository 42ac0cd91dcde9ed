"""Make the course's environment, or say in one line what is in the way and how out.

    python3 tools/make_env.py            into .venv
    python3 tools/make_env.py FOLDER

Needs nothing installed and runs on any Python 3, so that a too old one can be told so. What an
interrupted run left is made anew.
"""

import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OLDEST = (3, 11)
NEEDED_GIB = 1.5  # the environment with the CPU build of PyTorch, and what pip unpacks on the way
STAMP = "made"  # written last, with the place the environment was made for


class CannotMake(Exception):
    """Something is in the way; the message says what, and how out."""


def check_python(version=tuple(sys.version_info[:3])):
    if version < OLDEST:
        raise CannotMake(
            "The course needs Python %d.%d or newer; this is %s. Install a newer one, then say which: "
            "make PYTHON=python3.12" % (OLDEST + (".".join(map(str, version)),))
        )


def check_folder(folder):
    parent = os.path.dirname(os.path.abspath(folder))
    if not os.path.isdir(parent):
        raise CannotMake("There is no folder %s. Run this in the course's folder." % parent)
    if not os.access(folder if os.path.isdir(folder) else parent, os.W_OK):
        raise CannotMake(
            "You may not write in %s. Copy the course to a folder of your own and run make there." % parent
        )
    check_space(parent)


def check_space(parent, free=None):
    free = shutil.disk_usage(parent).free if free is None else free
    if free < NEEDED_GIB * 2**30:
        raise CannotMake(
            "The disk with %s has %.1f GiB free; the environment needs about %.1f. Free some, or copy the "
            "course to another disk, then run make again." % (parent, free / 2**30, NEEDED_GIB)
        )


def explain(output):
    """Return what to do about an output of pip or venv that ended in an error."""
    known = (
        (("No space left", "Errno 28"), "The disk is full. Free some GiB, then run make again: it begins anew."),
        (("Permission denied", "Errno 13"), "A folder may not be written; it is named above. Mend that, then run make again."),
        (("ensurepip",), "This Python lacks venv. On Debian and Ubuntu: apt install python3-venv. Then run make again."),
        (
            ("NewConnectionError", "Temporary failure in name", "Connection refused", "ProxyError", "timed out", "No matching distribution"),
            "pip could not get a package: is there a network, a proxy? Then run make again: it begins anew.",
        ),
    )
    for signs, text in known:
        if any(sign in output for sign in signs):
            return text
    return "The installation stopped; the reason stands above. Run make again: it begins anew."


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        print("\n".join(lines[-5:]))
        raise CannotMake(explain(done.stdout))
    return done.stdout


def make(folder):
    check_python()
    check_folder(folder)
    print("Making %s: this takes some minutes, and a network." % folder, flush=True)
    run(sys.executable, "-m", "venv", "--clear", folder)
    python = os.path.join(folder, *(("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")))
    pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install")
    run(*pip, "--upgrade", "pip")
    run(*pip, "--constraint", os.path.join(ROOT, "constraints.txt"), "--editable", ROOT + "[teach,test,real]")
    print(run(python, "-c", "from mha_lib import environment; environment.report()"), end="")
    with open(os.path.join(folder, STAMP), "w") as file:
        file.write(ROOT)
    fetch_model(python)


def fetch_model(python):
    """Fetch what chapter 14 needs; without it everything else works, and the command says how to get it later."""
    subprocess.call([python, "-m", "mha_lib.real_model"], cwd=ROOT)


def main(arguments):
    try:
        make(arguments[0] if arguments else os.path.join(ROOT, ".venv"))
    except CannotMake as reason:
        print(reason)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. Run make again: it begins anew.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
