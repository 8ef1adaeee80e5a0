"""Build steps beyond pyproject.toml: check the compiler, then compile the core's files in parallel.

All settings are in pyproject.toml. A compiler's error about a missing header or unknown flag does
not name a fix; the last line printed here does.
"""

import itertools
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

CPP17 = "#include <optional>\n#include <string_view>\nstd::optional<std::string_view> none;\n"
PYTHON = "#include <Python.h>\n"


class BuildCore(build_ext):
    """Compiles a probe, and then the files of an extension in parallel."""

    def build_extension(self, ext: Extension) -> None:
        with tempfile.TemporaryDirectory() as folder:
            if not self._compiles(CPP17 + PYTHON, folder, ext.extra_compile_args):
                raise SystemExit(f"error: groundup needs {self._find_what_is_missing(ext, folder)}")
        compile_one_by_one = self.compiler.compile

        def compile_in_parallel(sources: list[str], **options: object) -> list[str]:
            with ThreadPoolExecutor() as pool:
                objects = pool.map(lambda one: compile_one_by_one([one], **options), sources)
                return list(itertools.chain.from_iterable(objects))

        self.compiler.compile = compile_in_parallel
        super().build_extension(ext)

    def _find_what_is_missing(self, ext: Extension, folder: str) -> str:
        words = itertools.takewhile(lambda word: word[0] != "-", self.compiler.compiler_so_cxx)
        command = " ".join(words)
        if not self._compiles("int one = 1;\n", folder):
            return (
                f"a C++17 compiler, and {command} does not work: install one (apt-get install g++, "
                f"dnf install gcc-c++ or xcode-select --install), or name yours in CC and CXX"
            )
        if not self._compiles(CPP17, folder, ext.extra_compile_args):
            return (
                f"a C++17 compiler, and {command} is not one: install gcc 9 or clang 9 or later, "
                f"or name another in CC and CXX"
            )
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return (
            f"the headers of Python {version}, and Python.h is missing: install them (apt-get "
            f"install python{version}-dev or dnf install python3-devel)"
        )

    def _compiles(self, text: str, folder: str, flags: list[str] | None = None) -> bool:
        file = Path(folder, "probe.cpp")
        file.write_text(text, encoding="utf-8")
        try:
            self.compiler.compile([str(file)], output_dir=folder, extra_postargs=flags)
        except CompileError:
            return False
        return True


setup(cmdclass={"build_ext": BuildCore})
