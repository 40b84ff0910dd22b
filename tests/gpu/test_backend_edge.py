"""The table of one edge: A0 → B0 at each M, by where the consumer waits."""

import json
from dataclasses import asdict

import pytest

from mktune.backends.cuda import CudaBackend
from mktune.measure.edge import MS, edge_table
from mktune.plan import GDC

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_alone]


def test_the_table_has_a_row_for_each_m_and_wait_and_its_columns_agree():
    table = edge_table(CudaBackend(), "glm52_attention_prefix", "A0", "B0")
    rows = table.rows
    for row in rows:
        print(
            json.dumps(
                {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(row).items()}
            )
        )
    assert [(row.m, row.wait) for row in rows] == [(m, wait) for m in MS for wait in GDC]
    for row in rows:
        assert row.saved_us == pytest.approx(row.off_us - row.on_us, abs=0.3)
        assert row.slowdown_us == pytest.approx(row.producer_on_us - row.producer_off_us)
        assert 0.5 < row.producer_off_us < row.off_us
        assert row.trigger in ("start", "after_wait", "before_epilogue")
    assert [choice.m for choice in table.choices] == list(MS)
    for choice in table.choices:
        assert choice.saved.low <= choice.saved.median <= choice.saved.high
