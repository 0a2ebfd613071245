"""One table, five ways to print it."""

import csv
import io

import pytest

from semmix.report.table import Table, escape_latex, escape_markdown, terminal_width

TABLE = Table(["Name", "Value", "Note"], [["a", "1.5", "x"], ["long name here", "20", "yy"]], align="lrl")


def test_text_aligns_columns_to_their_sides():
    assert TABLE.text().splitlines() == [
        "Name            Value  Note",
        "---------------------------",
        "a                 1.5  x",
        "long name here     20  yy",
    ]
    assert Table(["A", "B"], [["x", "1"]], title="Above").text().splitlines()[:2] == ["Above", "A  B"]


@pytest.mark.parametrize(("width", "num_lines"), [(60, 4), (32, 4), (31, 5), (10, 5)])
def test_only_the_first_column_is_folded_and_never_below_twenty(width, num_lines):
    table = Table(["Name", "Value"], [["twenty-six letters and no", "12345"], ["b", "1"]])
    text = table.text(width)
    assert len(text.splitlines()) == num_lines
    assert text.split("\n")[2].endswith("12345")
    if width == 31:
        assert max(map(len, text.splitlines())) == 31


def test_every_format_holds_each_cell_once():
    for form in ("text", "markdown", "latex", "csv", "html"):
        for cell in ("long name here", "1.5", "20", "yy"):
            assert TABLE.render(form).count(cell) == 1
    assert TABLE.markdown().splitlines()[1] == "| --- | ---: | --- |"
    assert TABLE.latex().startswith(
        "\\begin{tabular}{lrl}\n\\toprule\nName & Value & Note \\\\\n\\midrule\na & 1.5 & x"
    )
    assert [*csv.reader(io.StringIO(TABLE.csv()))] == [TABLE.headings, *TABLE.rows]


def test_what_a_format_gives_a_meaning_is_escaped():
    assert escape_latex(r"\&%$#_{}~^±−–Δ") == (
        r"\textbackslash{}\&\%\$\#\_\{\}\textasciitilde{}\textasciicircum{}$\pm$$-$--$\Delta$"
    )
    assert escape_markdown(r"a|b\c<d>") == r"a\|b\\c&lt;d>"
    table = Table(["<A>", "B|"], [["a & b", 'q"']], title="t < u")
    assert "<caption>t &lt; u</caption>" in table.html()
    assert '<td style="text-align: left">a &amp; b</td><td style="text-align: right">q&quot;</td>' in table.html()
    assert "| &lt;A> | B\\| |" in table.markdown()


def test_rows_of_another_length_are_a_mistake():
    with pytest.raises(AssertionError):
        Table(["A", "B"], [["only one"]])


def test_a_notebook_shows_it_and_print_prints_it():
    assert TABLE._repr_html_() == TABLE.html()
    assert str(TABLE) == TABLE.text()


def test_the_terminals_width_is_asked_for(monkeypatch):
    monkeypatch.setenv("COLUMNS", "57")
    assert terminal_width() == 57
