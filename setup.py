"""Maps the top-level folders into one namespace; the metadata is in pyproject.toml."""

from setuptools import find_packages, setup

FOLDERS = ("kernels", "train", "configs")
INNER = find_packages(include=[*FOLDERS, *(f"{name}.*" for name in FOLDERS)])

setup(
  packages=find_packages(include=["specjax", "specjax.*"]) + [f"specjax.{name}" for name in INNER],
  package_dir={"specjax": "specjax", **{f"specjax.{name}": name for name in FOLDERS}},
  package_data={
    "specjax.zoo": ["*/*"],
    "specjax.eval": ["questions.txt", "code_tasks/*.txt"],
    "specjax.kernels": ["*.h"],
    "specjax.kernels.norm": ["*.cc"],
    "specjax.kernels.skinny": ["*.cc", "*.h"],
    "specjax.kernels.tree_attention": ["*.cc"],
  },
)
