"""The examples of the documentation are run."""

import doctest
import pathlib

import dwell


def test_examples_of_the_functions(recordings):
    result = doctest.testmod(dwell, extraglobs={"RECORDINGS": recordings})
    assert (result.failed, result.attempted > 8) == (0, True)


def test_examples_of_the_readme(recordings):
    readme = pathlib.Path(__file__).parents[1] / "README.md"
    result = doctest.testfile(str(readme), module_relative=False, globs={"RECORDINGS": recordings})
    assert (result.failed, result.attempted > 3) == (0, True)


def test_every_function_has_types_and_an_example():
    for name in ["read", "settings", "costs", "rollout", "tune", "histogram"]:
        function = getattr(dwell, name)
        assert ">>>" in function.__doc__, name
        assert set(function.__annotations__) > {"return"}, name
