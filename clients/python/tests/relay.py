"""A port in front of the service, at which nobody listens until it is opened."""

import socket
import threading
import time
from contextlib import suppress


class Relay:
    def __init__(self, address: str, delay: float = 0.0) -> None:
        """The service's answers begin after `delay` seconds."""
        self._delay = delay
        host, port = address.rsplit(":", 1)
        self._service = (host, int(port))
        self._listener = socket.socket()
        # Bound and not listening: connections are refused, and nobody else gets the port.
        self._listener.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def open(self) -> None:
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            service = socket.create_connection(self._service)
            for ends in ((client, service, 0.0), (service, client, self._delay)):
                threading.Thread(target=copy, args=ends, daemon=True).start()


def copy(source: socket.socket, target: socket.socket, delay: float) -> None:
    time.sleep(delay)
    # Ends when the client or the service does.
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)
