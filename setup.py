"""Maps the top-level folders into one namespace; the metadata is in pyproject.toml."""

from setuptools import find_packages, setup

FOLDERS = {"specjax.train": "train", "specjax.configs": "configs"}

setup(
  packages=find_packages(include=["specjax", "specjax.*"]) + list(FOLDERS),
  package_dir={"specjax": "specjax", **FOLDERS},
  package_data={"specjax.zoo": ["*/*"]},
)
