"""The exception tree and the sentences it speaks."""

import pickle

from groundup import errors


def test_an_error_is_one_paragraph() -> None:
    error = errors.DataError("corpus.txt is empty:\n    give a file\n  with text\n")
    assert str(error) == "corpus.txt is empty: give a file with text"


def test_errors_cross_process_boundaries() -> None:
    extra = errors.MissingExtraError("reading .parquet files", "parquet")
    assert "reading .parquet" in str(extra) and "pip install 'groundup[parquet]'" in str(extra)
    for error in (errors.DataError("damaged"), extra):
        back = pickle.loads(pickle.dumps(error))
        assert (type(back), str(back)) == (type(error), str(error))


def test_the_nearest_name_bridges_typing_mistakes_case_and_underscores() -> None:
    names = ["vocab-size", "out"]
    for typed in ("vocabsize", "Vocab_Size"):
        assert errors.did_you_mean(typed, names) == "did you mean vocab-size?"
    assert errors.nearest_name("zzz", names) is None
    assert errors.did_you_mean("zzz", names) == "known are vocab-size, out"
    assert errors.did_you_mean("zzz", []) == "there are none"
