"""The exception tree and the sentences it speaks."""

import pickle

import pytest

from groundup import errors


def test_an_error_is_one_paragraph() -> None:
    error = errors.DataError("corpus.txt is empty:\n    give a file\n  with text\n")
    assert str(error) == "corpus.txt is empty: give a file with text"


def test_a_missing_extra_names_the_feature_and_the_command() -> None:
    error = errors.MissingExtraError("reading .parquet files", "parquet")
    assert "reading .parquet files" in str(error)
    assert "pip install 'groundup[parquet]'" in str(error)


@pytest.mark.parametrize(
    "error", [errors.DataError("damaged"), errors.MissingExtraError("zstd input", "zstd")]
)
def test_errors_cross_process_boundaries(error: errors.GroundupError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back)) == (type(error), str(error))


def test_nearest_name_bridges_typing_mistakes_case_and_underscores() -> None:
    names = ["vocab-size", "special-token", "out"]
    assert errors.nearest_name("vocabsize", names) == "vocab-size"
    assert errors.nearest_name("Vocab_Size", names) == "vocab-size"
    assert errors.nearest_name("zzz", names) is None


def test_did_you_mean_lists_the_names_when_none_is_near() -> None:
    assert errors.did_you_mean("trian", ["train", "encode"]) == "did you mean train?"
    assert errors.did_you_mean("zzz", ["train", "encode"]) == "known are train, encode"
    assert errors.did_you_mean("zzz", []) == "there are none"
