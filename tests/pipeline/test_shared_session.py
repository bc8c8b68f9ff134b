"""The guard of the shared Spark session: a test that would start one of its own, and stop it for all, fails."""

import pytest

from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.dry_build import build_dry
from klamm.pipeline.testing import run

TEXT = "CREATE STREAM s (id STRING) WITH (topic = 's'); CREATE STREAM copies AS SELECT id FROM s;"


@pytest.mark.parametrize("start", [lambda: build_dry(compile_text(TEXT, "p.sql")), lambda: run(TEXT, {"s": []})])
def test_a_session_of_ones_own_is_refused(start):
    with pytest.raises(pytest.fail.Exception, match="spark"):
        start()
