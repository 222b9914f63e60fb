import pytest

from scripts.prepare_noto_emoji import class_of, is_held_out

WOMAN, MAN, ADULT, JOINER, FEMALE, MALE = 0x1F469, 0x1F468, 0x1F9D1, 0x200D, 0x2640, 0x2642


@pytest.mark.parametrize(
    ("codes", "name"),
    [
        ((0x1F600,), "face"),
        ((0x2764,), "symbol"),
        ((MAN, JOINER, 0x1F680), "people"),
        ((0x1F1EF, 0x1F1F5), "flag"),
        ((0x1F3F4, 0xE0067, 0xE0062, 0xE0065, 0xE006E, 0xE0067, 0xE007F), "flag"),
        ((0x1F1EF,), None),  # half of a flag
        ((0x1F44B, 0x1F3FD), None),
        ((0x23, 0x20E3), None),
        ((), None),
    ],
)
def test_class_of_code_points(codes: tuple[int, ...], name: str | None) -> None:
    assert class_of(codes) == name


def test_variants_of_an_emoji_are_in_the_same_part() -> None:
    for work in (0x1F680, 0x1F692, 0x1F3A8, 0x1F373, 0x1F33E):
        assert len({is_held_out((person, JOINER, work)) for person in (WOMAN, MAN, ADULT)}) == 1
    for person in range(0x1F645, 0x1F648):
        assert len({is_held_out(each) for each in ((person,), (FEMALE, JOINER, person), (person, JOINER, MALE))}) == 1
    faces = [is_held_out((code,)) for code in range(0x1F600, 0x1F638)]
    assert 4 < sum(faces) < 20
