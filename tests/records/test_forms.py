"""Which form of the kernels runs, how to choose it, and the package's public names."""

import os
import subprocess
import sys

import klamm.records
from klamm.records import INTERPRETED_NOTICE

PROGRAM = """
import klamm.records as r
from klamm.records.kernels import MODULES, produce
print(r.kernels_compiled(), produce.COMPILED)
"""


def run(program, **environment):
    env = {k: v for k, v in os.environ.items() if k != "KLAMM_INTERPRETED"} | environment
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env, timeout=60
    )
    return done.stdout.split()


def test_the_compiled_form_runs_where_it_exists(compiled):
    assert compiled.COMPILED
    assert run(PROGRAM) == ["True", "True"]
    assert run(PROGRAM, KLAMM_INTERPRETED="0") == ["True", "True"]


def test_the_environment_chooses_the_interpreted_form():
    assert run(PROGRAM, KLAMM_INTERPRETED="1") == ["False", "False"]


def test_the_interpreted_form_needs_no_cython():
    program = (
        "import sys; sys.modules['cython'] = None; sys.modules['Cython'] = None\n"
        + PROGRAM
        + ("b = r.build_batch([(1, b'k', b'v', [('h', None)])]); print(r.decode_batch(b)[0].headers)")
    )
    assert run(program, KLAMM_INTERPRETED="1") == ["False", "False", "(('h',", "None),)"]


def test_one_line_says_that_the_kernels_are_interpreted_and_what_to_do():
    assert "\n" not in INTERPRETED_NOTICE
    assert "interpreted" in INTERPRETED_NOTICE
    assert "pip install" in INTERPRETED_NOTICE


def test_public_names():
    assert sorted(klamm.records.__all__) == [
        "BatchView",
        "CODEC_NAMES",
        "Codec",
        "DecodedRecord",
        "INTERPRETED_NOTICE",
        "build_batch",
        "decode_batch",
        "iter_batches",
        "kernels_compiled",
    ]
    assert all(hasattr(klamm.records, name) for name in klamm.records.__all__)
