"""Public corpora: where their files are, how long they are and what they hash to."""

from dataclasses import dataclass

HUB = "https://huggingface.co/datasets"


@dataclass(frozen=True)
class RemoteFile:
    """One file to fetch, and for one that is packed, the hash of what it holds."""

    path: str
    num_bytes: int
    sha256: str
    unpacked_sha256: str | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


_TINYSTORIES = "roneneldan/TinyStories/resolve/main"
_OPENWEBTEXT = "stanford-cs336/owt-sample/resolve/main"

CORPORA = {
    "tinystories": (
        RemoteFile(
            f"{_TINYSTORIES}/TinyStoriesV2-GPT4-train.txt",
            2_227_753_162,
            "6418d412de72888f52b5142c761ac21a582f7d1166f0bfbdb5f03ccfdec90443",
        ),
        RemoteFile(
            f"{_TINYSTORIES}/TinyStoriesV2-GPT4-valid.txt",
            22_502_601,
            "6874bae9a4c1a4e7edcf0e53b86c17817e9cf881fc75ff2368da457b80c0585d",
        ),
    ),
    "openwebtext": (
        RemoteFile(
            f"{_OPENWEBTEXT}/owt_train.txt.gz",
            4_591_240_837,
            "b19ae88cfbc4016b304c348522455fe38ebac48fffed955adcc7191a89e38ccf",
            "bbeb7f291a981ecfd5cf44b84d0f654b9e96c53dff99f2556b7d2cccaf8c1918",
        ),
        RemoteFile(
            f"{_OPENWEBTEXT}/owt_valid.txt.gz",
            111_785_382,
            "bc73db5da2f19c360836b9c8a88094e13346ec83798c2f40060be39135768c80",
            "2406f278e71829d273b315e9b403285baea7022b26a96d2728dd8b776ea40660",
        ),
    ),
}
