"""Make the course's environment, or say in one line what is in the way and how out.

    python3 tools/make_env.py            into .venv
    python3 tools/make_env.py FOLDER

Needs nothing installed and runs on any Python 3, so that a too old one can be told so. What an
interrupted run left is made anew.
"""

import json
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OLDEST = (3, 11)
# GB of the environment with either build of PyTorch, measured with du.
WITH_CPU, WITH_CUDA = 1.8, 5.3
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


def check_space(parent, needed=WITH_CPU, free=None):
    free = shutil.disk_usage(parent).free if free is None else free
    if free < needed * 1e9:
        raise CannotMake(
            "The disk with %s has %.1f GB free; the environment needs about %.1f: %.1f with the CPU build of PyTorch, "
            "%.1f with CUDA (the README says how to choose, under \"The small build of PyTorch\"). Free some, or copy "
            "the course to another disk, then run make again." % (parent, free / 1e9, needed, WITH_CPU, WITH_CUDA)
        )


def space_for(report):
    """Return the GB needed, from pip's report of the build of PyTorch that it would take here."""
    (torch,) = [item["metadata"]["version"] for item in report["install"] if item["metadata"]["name"] == "torch"]
    # On other systems the build without a name is the one for the CPU.
    local = torch.partition("+")[2]
    with_cuda = local.startswith("cu") or (not local and sys.platform.startswith("linux"))
    return WITH_CUDA if with_cuda else WITH_CPU


def explain(output):
    """Return what to do about an output of pip or venv that ended in an error."""
    known = (
        (("No space left", "Errno 28"), "The disk is full. Free some GiB, then run make again: it begins anew."),
        (("Permission denied", "Errno 13"), "A folder may not be written; it is named above. Mend that, then run make again."),
        (
            ("Requires-Python", "requires a different Python"),
            "A package named above does not go with this Python (%s). Take another: make PYTHON=python3.12"
            % ".".join(map(str, sys.version_info[:3])),
        ),
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


def reason(output):
    """Return the lines in which pip or venv says why: from its first error on, or the last ones."""
    lines = [line for line in output.splitlines() if line.strip()]
    signs = ("ERROR", "Error:", "The conflict is caused by", "INFO: pip is looking")
    first = min((i for i, line in enumerate(lines) if any(sign in line for sign in signs)), default=len(lines))
    return "\n".join(lines[min(first, max(len(lines) - 5, 0)):][:15])


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        print(reason(output))
        raise CannotMake(explain(output))
    return output


def make(folder):
    check_python()
    check_folder(folder)
    print("Making %s: this takes some minutes, and a network." % folder, flush=True)
    run(sys.executable, "-m", "venv", "--clear", folder)
    python = os.path.join(folder, *(("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")))
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install")
    pinned = ("--constraint", os.path.join(ROOT, "constraints.txt"))
    run(*pip, "--upgrade", "pip")
    report = os.path.join(folder, "torch.json")
    run(*pip, "--dry-run", "--no-deps", "--ignore-installed", "--report", report, *pinned, "torch")
    with open(report, encoding="utf-8") as file:
        check_space(folder, space_for(json.load(file)))
    run(*pip, *pinned, "--editable", ROOT + "[teach,test,real]")
    run(python, os.path.join(ROOT, "tools", "teacher.py"), "off")
    print(run(python, "-c", "from mha_lib import environment; environment.report()"), end="")
    with open(os.path.join(folder, STAMP), "w", encoding="utf-8", errors="surrogateescape") as file:
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
