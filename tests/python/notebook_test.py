"""Executes docs/notebook.ipynb over the built program: python3 notebook_test.py PROGRAM SOURCE_FOLDER. Status 77 where jupyter's parts are missing."""

import os
import pathlib
import sys

try:
    import ipykernel  # noqa: F401: the kernel that executes it
    import matplotlib  # noqa: F401
    import nbclient
    import nbformat
    import pandas  # noqa: F401
except ImportError as error:
    print(f"SKIPPED: {error} (pip install nbconvert ipykernel pandas matplotlib)")
    sys.exit(77)

os.environ["SEXTANT_PROGRAM"] = sys.argv[1]
source = pathlib.Path(sys.argv[2])
os.environ["PYTHONPATH"] = str(source / "python")
notebook = nbformat.read(source / "docs" / "notebook.ipynb", as_version=4)


def executed(cells):
    """What each cell shows, as {kind: data}."""
    copy = nbformat.from_dict({**notebook, "cells": cells})
    nbclient.NotebookClient(copy, timeout=120, kernel_name="python3").execute()
    shown = []
    for cell in copy.cells:
        if cell.cell_type == "code":
            kinds = {}
            for output in cell.outputs:
                kinds.update(output.get("data") or {"text": output.get("text", "")})
            shown.append(kinds)
    return shown


answer, chart, frame, simulated, slower, refused = executed(notebook.cells)
assert "<td>recommended</td>" in answer["text/html"], answer
assert chart["image/png"] and simulated["image/png"]
assert "step_time_s" in frame["text/html"], frame
assert slower["text/html"] != answer["text/html"]
assert "a100-90gb" in refused["text"], refused
try:  # negative control: a cell that fails ends it
    executed([nbformat.v4.new_code_cell("import sextant\nsextant.plan('llama-2-13b')")])
except nbclient.exceptions.CellExecutionError as error:
    assert "--cluster is missing" in str(error), error
else:
    sys.exit("a notebook whose cell fails was executed without complaint")
print("executed")
