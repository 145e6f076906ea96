"""JSON of other programs, changed in place: what is put in can be cut out again, and nothing else moves a byte."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.cli.json_edit import parse, with_child, without_child
from watchdog.errors import BadRequest

PRETTY = '{\n    "b": [1, 2],\n    "a": {"x": null}\n}\n'
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda some: st.lists(some, max_size=3))


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("{}", '{\n  "k": [\n    1\n  ]\n}'),
        ('{"a": 1}', '{"a": 1, "k": [1]}'),
        ('{"a":1 }', '{"a":1, "k": [1] }'),
        ('{\n\t"a": 1\n}\n', '{\n\t"a": 1,\n\t"k": [\n\t\t1\n\t]\n}\n'),
        ('{\r\n  "a": 1\r\n}', '{\r\n  "a": 1,\r\n  "k": [\r\n    1\r\n  ]\r\n}'),
    ],
)
def test_a_member_is_written_as_its_neighbours_are(text: str, after: str) -> None:
    """Indent, line ends, or all in one line; and it is cut out without a trace."""
    changed = with_child(text, parse(text), 0, [1], "k")
    assert changed == after
    root = parse(changed)
    member = root.member("k")
    assert member is not None
    assert member.value == [1]
    assert json.loads(without_child(changed, root, member)) == json.loads(text)
    if root.children[0] is not member:
        assert without_child(changed, root, member) == text


def test_comments_keep_their_place() -> None:
    """Where the program allows them; strict JSON has none."""
    text = '{\n  // mine\n  "a": [\n    /* none yet */\n  ]\n}\n'
    root = parse(text, comments=True)
    array = root.member("a")
    assert array is not None
    changed = with_child(text, array, 1, "x")
    assert "// mine" in changed
    assert "/* none yet */" in changed
    assert parse(changed, comments=True).value == {"a": ["x"]}
    with pytest.raises(BadRequest, match="line 2, column 3"):
        parse(text)


def test_of_two_members_of_one_name_the_last_counts() -> None:
    """As every reader takes them."""
    member = parse('{"a": 1, "a": 2}').member("a")
    assert member is not None
    assert member.value == 2
    assert parse("{}").member("a") is None


@pytest.mark.parametrize("index", [0, 1, 2])
def test_an_element_is_cut_out_with_its_comma(index: int) -> None:
    """The first, the last, one between."""
    text = '{"a": [10 , 20,\n 30]}'
    array = parse(text).member("a")
    assert array is not None
    left = [10, 20, 30]
    del left[index]
    assert parse(without_child(text, array, array.children[index])).value == {"a": left}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1, column 1: a value was expected"),
        ("[]", "is not a JSON object"),
        ("{} {}", "line 1, column 3: more follows the end"),
        ('{\n"a" 1}', "line 2, column 5: ':' was expected"),
        ('{"a": 1 "b": 2}', "',' or '}' was expected"),
        ('{"a": 1,}', "a key in double quotes was expected"),
        ("{a: 1}", "a key in double quotes was expected"),
        ('{"a": [1,]}', "a value was expected"),
        ('{"a": 01}', "',' or '}' was expected"),
        ('{"a": NaN}', "a value was expected"),
        ('{"a": "\n"}', "line 1"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
    ids=lambda one: one[:20],
)
def test_what_is_no_json_object_is_told_with_its_place(text: str, said: str) -> None:
    """A person has to find it."""
    with pytest.raises(BadRequest) as caught:
        parse(text)
    assert said in str(caught.value)


@given(st.dictionaries(st.text(), VALUES, min_size=1), VALUES, st.sampled_from([None, 1, 4, "\t"]))
def test_any_object_comes_back_byte_for_byte(
    document: dict[str, object], value: object, indent: int | str | None
) -> None:
    """Put in at the end, and cut out again."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    root = parse(text)
    assert root.value == document
    changed = with_child(text, root, 0, value, "our own")
    again = parse(changed)
    assert again.value == {**document, "our own": value}
    assert without_child(changed, again, again.children[-1]) == text
