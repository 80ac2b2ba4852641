"""Lines out of chunks, however the chunks fall."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from builder.engine_lines import LONGEST, LineSplitter

LINES = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n")), max_size=20)


@given(LINES, st.lists(st.integers(0, 200), max_size=20))
def test_lines_do_not_depend_on_where_chunks_end(lines: list[str], cuts: list[int]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    seen: list[str] = []
    splitter = LineSplitter(seen.append)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in pairwise(places):
        splitter.feed(data[start:end])
    splitter.end()
    assert seen == lines


def test_bytes_that_are_no_text_do_not_stop_it() -> None:
    seen: list[str] = []
    splitter = LineSplitter(seen.append)
    splitter.feed(b"\xff\xfe\n")
    assert seen == ["\ufffd\ufffd"]


def test_a_line_without_end_is_handed_on_in_pieces() -> None:
    seen: list[str] = []
    splitter = LineSplitter(seen.append)
    splitter.feed(b"x" * (2 * LONGEST + 5))
    splitter.end()
    assert [len(line) for line in seen] == [LONGEST, LONGEST, 5]
