"""Ranks that are forks of this process, on this machine."""

import json
import os
import socket
from collections.abc import Callable
from typing import Any


def fork_ranks(measure: Callable[[int], Any], size: int, died: Any = None) -> list[Any]:
    """What `measure` gives on each rank, which has torchrun's variables if it is not the only one.

    died: the result of a rank that did.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    children = []
    for rank in range(size):
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            if size > 1:
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
                os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(size))
            os.write(send, json.dumps(measure(rank)).encode())
            os._exit(0)
        os.close(send)
        children.append((child, receive))
    results = []
    for child, receive in children:
        with open(receive, "rb") as file:
            result = file.read()
        results.append(json.loads(result) if result else died)
        os.waitpid(child, 0)
    return results
