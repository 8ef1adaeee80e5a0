"""The encoding of a text is named when it looks like a language, and only then."""

import random
from pathlib import Path

import pytest

from groundup.errors import DataError
from groundup.text_files.guessing import guess_encoding
from groundup.text_files.reader import read_document_batches

TEXTS = {
    "cp1252": (
        "L’été dernier, nous avons marché jusqu’à la forêt où mon frère habitait déjà.",
        "Die schönen Mädchen hören über den Flüssen, daß es früh grün wird.",
        "El niño pequeño soñó que volvía a la montaña con su tío; ¿quién sabrá?",
        "På øya så vi både båter og får, og været ble stadig bedre.",
    ),
    "cp1250": (
        "Když přišel večer, měsíc osvětlil střechy a děti šly pěšky domů.",
        "Gdy przyszła wiosna, żółte kwiaty rosły wzdłuż ścieżki aż do źródła.",
    ),
    "cp1251": ("Вечером мальчик вышел во двор и увидел, что идёт снег.",),
    "koi8-r": ("Вечером мальчик вышел во двор и увидел, что идёт снег.",),
    "cp1253": ("Το βράδυ το παιδί βγήκε στην αυλή και είδε ότι χιόνιζε.",),
    "shift_jis": ("夜になると、子どもは庭に出て、雪が降っているのを見ました。",),
    "euc_jp": ("夜になると、子どもは庭に出て、雪が降っているのを見ました。",),
    "euc_kr": ("저녁이 되자 아이는 마당으로 나가서 눈이 내리는 것을 보았다.",),
    "gb18030": ("到了晚上，孩子走到院子里，看见天上下着大雪，他说这是他来这里以后最好的一天。",),
    "big5": ("到了晚上，孩子走到院子裡，看見天上下著大雪，他說這是他來這裡以後最好的一天。",),
}
CASES = [(name, text) for name, texts in TEXTS.items() for text in texts]


@pytest.mark.parametrize(("name", "text"), CASES)
def test_a_language_gives_its_encoding_away(name: str, text: str) -> None:
    assert guess_encoding(text.encode(name)) == name
    # As part of a longer text, and cut in the middle of a character.
    line = f'1999: the report says "{text}" and nothing else.\n'
    assert guess_encoding((line * 3).encode(name)[:-40]) == name


def test_a_mark_says_it_all() -> None:
    assert guess_encoding("snow".encode("utf-16")) == "utf-16"
    assert guess_encoding("snow".encode("utf-32")) == "utf-32"


def test_noise_is_no_language() -> None:
    for seed in range(20):
        assert guess_encoding(random.Random(seed).randbytes(400)) is None
    assert guess_encoding(b"one bad byte \xff here") is None


def test_the_error_names_the_flag_that_reads_the_text(tmp_path: Path) -> None:
    old = tmp_path / "old.txt"
    text = "A first line.\n" + TEXTS["cp1251"][0] + "\n"
    old.write_bytes(text.encode("cp1251"))
    with pytest.raises(DataError, match=r"old\.txt, byte 14: .*--encoding cp1251, or use --errors"):
        list(read_document_batches([old]))
