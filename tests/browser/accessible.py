"""What an existing checker, axe, finds that shuts people out."""

from axe_playwright_python.sync_playwright import Axe

RULES = [
    "color-contrast", "duplicate-id-aria", "empty-heading", "empty-table-header", "heading-order", "image-alt",
    "link-in-text-block", "link-name", "list", "listitem", "td-headers-attr", "th-has-data-cells",
]
# What the course brings into the page; the rest is JupyterLab's own.
OURS = ".jp-NotebookPanel .jp-RenderedHTMLCommon"


def problems(page) -> list[tuple[str, str, str]]:
    """Return rule, element and explanation of each thing in the course's part of a page that breaks a rule."""
    found = Axe().run(page, context={"include": [[OURS]]}, options={"runOnly": {"type": "rule", "values": RULES}})
    return [(v["id"], node["html"], node["failureSummary"]) for v in found.response["violations"] for node in v["nodes"]]
