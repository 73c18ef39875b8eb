"""A real Chromium, driven over its debugging pipe: what a reader of a report sees, clicks and reads."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import psutil

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
_FLAGS = (
    "--headless=new --no-sandbox --no-first-run --disable-gpu --disable-dev-shm-usage --hide-scrollbars "
    "--force-color-profile=srgb --disable-background-networking --disable-component-update --disable-sync "
    "--host-resolver-rules='MAP * ~NOTFOUND, EXCLUDE 127.0.0.1' --remote-debugging-pipe"
)
_LIMIT_SECONDS = 60.0
_FAULTS = """axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) => violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .flatMap(({ id, impact, nodes }) => nodes.slice(0, 5).map(({ target, failureSummary }) =>
        `${id} (${impact}) at ${target}: ${failureSummary}`)))"""


class Browser:
    """A page of a Chromium. `problems` are console errors, exceptions, dialogs and requests to a network."""

    def __init__(self, send: int, receive: int) -> None:
        self.problems: list[str] = []
        self._send, self._receive, self._rest = send, receive, b""
        self._number, self._session, self._own = 0, "", "file:"

    def open(
        self,
        target: Path | str,
        *,
        width: int = 1440,
        height: int = 900,
        scheme: str = "light",
        has_script: bool = True,
        early: str = "",
    ) -> None:
        """Show a file, or the page of a server, in a new page, and wait until it is loaded.

        Requests to that server are no problem. `early` is executed once the page's own program has begun.
        """
        self.problems = []
        self._session = ""
        url = target if isinstance(target, str) else target.resolve().as_uri()
        self._own = "/".join(url.split("/")[:3]) if isinstance(target, str) else "file:"
        page = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        if not has_script:
            self.call("Emulation.setScriptExecutionDisabled", value=True)
        if early:
            source = f"addEventListener('DOMContentLoaded', () => {{ {early} }})"
            self.call("Page.addScriptToEvaluateOnNewDocument", source=source)
        self.call("Page.navigate", url=url)
        self._wait_for("Page.loadEventFired")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return what a command of the DevTools protocol answers.

        Raises:
            RuntimeError: it was refused, or there was no answer within a minute.
        """
        self._number += 1
        body: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            body["sessionId"] = self._session
        os.write(self._send, json.dumps(body).encode() + b"\0")
        for message in self._messages():
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return dict(message["result"])
        raise RuntimeError(f"{method}: no answer")

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression, awaited.

        Raises:
            RuntimeError: it threw.
        """
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true.

        Raises:
            RuntimeError: it was not within a minute.
        """
        wait = f"""new Promise((done, fail) => {{
            const end = performance.now() + 50000, again = () => setTimeout(look, 25);
            const late = () => performance.now() > end ? fail(new Error("never")) : again();
            const look = () => ({script}) ? done(true) : late();
            look(); }})"""
        while self._run_on_page(wait) is None:
            pass

    def text(self) -> str:
        """Return the text of the page; "" while another one comes."""
        return self._run_on_page("document.body ? document.body.innerText : ''") or ""

    def _run_on_page(self, script: str) -> Any:
        """Return the value of an expression; None where the page was left meanwhile."""
        try:
            return self.run(script)
        except RuntimeError as error:
            if "navigated" not in str(error) and "context was destroyed" not in str(error):
                raise
            return None

    def key(self, name: str) -> None:
        """Press and release a key, such as `Enter`."""
        code = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "ArrowRight": 39}
        about = {"key": name, "windowsVirtualKeyCode": code.get(name, ord(name[0]))}
        text = {"text": "\r"} if name == "Enter" else {"text": name} if len(name) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def faults(self) -> list[str]:
        """Return the serious and critical faults that axe-core finds: rule, place and what is wrong."""
        axe = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
        self.run(f"{axe}; 0")
        return list(self.run(_FAULTS))

    def pdf(self) -> bytes:
        """Return the page as its reader would print it."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def picture(self, path: Path, *, is_whole: bool = False) -> None:
        found = self.call("Page.captureScreenshot", captureBeyondViewport=is_whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def _wait_for(self, method: str) -> None:
        for message in self._messages():
            if message.get("method") == method:
                return
        raise RuntimeError(f"{method} did not come")

    def _messages(self) -> Iterator[dict[str, Any]]:
        end = time.monotonic() + _LIMIT_SECONDS
        while time.monotonic() < end:
            while b"\0" in self._rest:
                raw, _, self._rest = self._rest.partition(b"\0")
                message = json.loads(raw)
                self._note(message)
                yield message
            if select.select([self._receive], [], [], 0.2)[0]:
                part = os.read(self._receive, 1 << 20)
                if not part:
                    return
                self._rest += part

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        if method == "Runtime.consoleAPICalled" and params["type"] in {
            "error",
            "warning",
            "assert",
        }:
            self.problems.append(str(params["args"]))
        if method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
            self.problems.append(str(params["entry"]))
        if method == "Page.javascriptDialogOpening":
            self.problems.append("dialog")
        if method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith((self._own, "file:", "data:", "blob:", "about:")):
                self.problems.append(f"request to {url[:200]}")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Give a Chromium of its own, and end it."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="soak-chromium-") as home:
        command = f"exec {CHROMIUM} {_FLAGS} --user-data-dir={home} about:blank 3<&{to_read} 4>&{from_write}"
        process = subprocess.Popen(
            ["/bin/bash", "-c", command],
            pass_fds=(to_read, from_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": home, "TMPDIR": home},
        )
        os.close(to_read)
        os.close(from_write)
        children: list[psutil.Process] = []
        try:
            yield Browser(to_write, from_read)
        finally:
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for child in psutil.wait_procs(children, 10)[
                1
            ]:  # they write into its folder to the end
                child.kill()
            psutil.wait_procs(children, 10)
            os.close(to_write)
            os.close(from_read)
