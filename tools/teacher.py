"""Show nbgrader in JupyterLab, or hide it: its menu, its buttons and what it runs in the server.

    python tools/teacher.py on       for whoever releases and grades exercises
    python tools/teacher.py off      for learners; so it is in a new environment

Changes settings of the environment whose Python runs it, and nothing else. nbgrader's commands work either way.
"""

import sys

EXTENSION = "@jupyter/nbgrader"
SERVER = tuple(f"nbgrader.server_extensions.{name}" for name in ("formgrader", "validate_assignment", "assignment_list", "course_list"))


def switch(on: bool) -> None:
    """Write JupyterLab's own settings of this environment."""
    from jupyter_server.extension.serverextension import toggle_server_extension_python
    from jupyterlab.commands import disable_extension, enable_extension

    (enable_extension if on else disable_extension)(EXTENSION, level="sys_prefix")
    for name in SERVER:
        toggle_server_extension_python(name, on, sys_prefix=True)


def main(words: list[str]) -> int:
    if words not in (["on"], ["off"]):
        print("Say which: python tools/teacher.py on, or off.")
        return 1
    try:
        switch(words == ["on"])
    except ImportError as error:
        print(f"{sys.executable} has no JupyterLab ({error}). Run make env, or activate the course's environment.")
        return 1
    except OSError as error:
        print(f"The environment's settings cannot be written: {error}. Ask whoever owns {sys.prefix}.")
        return 1
    print(f"nbgrader is {'shown' if words == ['on'] else 'hidden'} in JupyterLab. Start it anew to see that.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
