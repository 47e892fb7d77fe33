"""Imports Megatron-Bridge's configuration with the stand-ins of its check.py: check_server.py imports this once for all plans."""
import ast
import importlib
import importlib.abc
import importlib.machinery
import pathlib
import sys
import types

source = pathlib.Path(__file__).parents[2] / "tools/presets/exports/megatron_bridge.py"
stand_ins = [node for node in ast.parse(source.read_text()).body if isinstance(node, ast.ClassDef)]
exec(compile(ast.Module(stand_ins, []), str(source), "exec"))

importlib.import_module("megatron.core.transformer.transformer_config")  # before the stand-ins: it does without them
importlib.import_module("megatron.training.config")
sys.meta_path.append(Absent())  # noqa: F821: one of the classes
importlib.import_module("megatron.bridge.training.config")
importlib.import_module("megatron.bridge.training.mixed_precision")
