"""Controls headless Chromium in tests through its DevTools protocol over two pipes. Needs no Python package."""

import base64
import contextlib
import fcntl
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")


def find():
    """Returns the path of the browser, or None if no browser is found. The variable LAZY_CHROMIUM selects a browser."""
    named = os.environ.get("LAZY_CHROMIUM")
    return named or next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """A browser tab. It collects `requests` and `problems` (errors and warnings of the console) of its pages."""

    def __init__(self, process, to_browser, from_browser):
        self.process, self.to_browser = process, to_browser
        self.requests, self.problems = [], []
        self.messages, self.number, self.session = queue.Queue(), 0, None
        threading.Thread(target=self._read, args=(from_browser,), daemon=True).start()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _read(self, stream):
        rest = b""
        while data := os.read(stream, 1 << 16):
            *whole, rest = (rest + data).split(b"\0")
            for message in whole:
                self.messages.put(json.loads(message))
        self.messages.put(None)

    def _note(self, message):
        method, details = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            found = details["exceptionDetails"]
            self.problems.append(found.get("exception", {}).get("description") or found["text"])
        elif method == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.problems.append(str([value.get("value") for value in details["args"]]))
        elif method == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{details['entry']['text']} {details['entry'].get('url', '')}")

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while (answer := self.messages.get(timeout=60)) is not None:
            if answer.get("id") != self.number:
                self._note(answer)
                continue
            assert "error" not in answer, f"{method}: {answer['error']}"
            return answer["result"]
        raise AssertionError("the browser has ended")

    def evaluate(self, expression):
        """Returns the value of a JavaScript expression. If the value is a promise, waits for its result."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression, seconds=60):
        """Waits until the expression is true and returns its value."""
        end = time.monotonic() + seconds
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < end, f"after {seconds} s still not true: {expression}; {self.problems}"
            time.sleep(0.03)
        return value

    def open(self, address, width, height, dark=False):
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=address)
        self.wait_for(f"document.readyState === 'complete' && location.href.startsWith({json.dumps(address)})")

    def center(self, selector):
        """Scrolls the element into view. Returns the center of the box around its first line of text."""
        return self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'nearest'}); const b = e.getClientRects()[0];"
            "return [b.left + b.width / 2, b.top + b.height / 2]; })()"
        )

    def _mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def point(self, selector):
        self._mouse("mouseMoved", *self.center(selector))

    def click(self, selector):
        x, y = self.center(selector)
        self._mouse("mouseMoved", x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self._mouse(kind, x, y, button="left", clickCount=1)

    def tap(self, selector):
        x, y = self.center(selector)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, *keys):
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        for key in keys:
            details = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
            if key == "Enter":
                details["text"] = "\r"
            self.call("Input.dispatchKeyEvent", type="keyDown", **details)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def write(self, selector, text):
        """Replaces the content of an input field."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).select()")
        self.call("Input.insertText", text=text)

    def picture(self, path, whole=False):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(data["data"]))


@contextlib.contextmanager
def running(program):
    """Context manager that starts a Browser, and ends it when the `with` block ends."""
    input_read, input_write = os.pipe()
    output_read, output_write = os.pipe()
    # With --remote-debugging-pipe, the browser reads from file descriptor 3 and writes to file descriptor 4.
    theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (input_read, output_write)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [program, "--headless", "--remote-debugging-pipe", f"--user-data-dir={folder}", "--no-first-run"]
        command += ["--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--mute-audio"]
        if os.geteuid() == 0:
            command.append("--no-sandbox")  # Chromium refuses to run as root without this option
        process = subprocess.Popen(
            command,
            close_fds=False,
            preexec_fn=lambda: (os.dup2(theirs[0], 3), os.dup2(theirs[1], 4)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (input_read, output_write, *theirs):
            os.close(fd)
        try:
            yield Browser(process, input_write, output_read)
        finally:
            process.kill()
            process.wait()
            os.close(input_write)
