"""For all tests: Ctrl-C, and a real browser, driven through Chromium's debugging pipe."""

import json
import os
import select
import shutil
import signal
import subprocess
import time

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def pytest_configure():
    """Let Ctrl-C work, which some tests press: a shell's background jobs are started without it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Browser:
    """Headless Chromium spoken to in JSON over two pipes, so that no driver is needed."""

    def __init__(self, profile):
        to_chromium, self.out = os.pipe()
        self.inp, from_chromium = os.pipe()
        options = "--headless --no-sandbox --disable-gpu --hide-scrollbars --remote-debugging-pipe"
        shell = f'exec "$0" {options} --user-data-dir="$1" 3<&{to_chromium} 4>&{from_chromium}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, str(CHROMIUM), str(profile)],
            pass_fds=(to_chromium, from_chromium),
            stderr=subprocess.DEVNULL,
        )
        os.close(to_chromium)
        os.close(from_chromium)
        self.buffer, self.count, self.session = b"", 0, None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        """Send one command and return its result; events that arrive meanwhile are noted."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self.count:
            self._note(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _receive(self, seconds=30):
        while b"\0" not in self.buffer:
            assert select.select([self.inp], [], [], seconds)[0], "Chromium does not answer"
            self.buffer += os.read(self.inp, 1 << 20)
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def _note(self, event):
        params = event.get("params", {})
        if event["method"] == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif event["method"] in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.complaints.append(json.dumps(params))
        elif event["method"] == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, page, width=1280, height=900, dark=False, media=""):
        """Load a file or an address at a window size and colour scheme; forget what was noted."""
        self.complaints.clear()
        self.requests.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.call("Emulation.setDeviceMetricsOverride", mobile=width < 600, **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.call("Page.navigate", url=page if "://" in str(page) else f"file://{page}")
        deadline = time.monotonic() + 30
        while self.run("document.readyState") != "complete" and time.monotonic() < deadline:
            time.sleep(0.02)

    def run(self, script):
        """Return the value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, selector):
        """Press and release the mouse in the middle of an element."""
        x, y = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            mouse = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", **mouse)

    def choose_files(self, selector, paths):
        """Put files into a file input, as its dialogue would."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", files=list(map(str, paths)), nodeId=node)

    def wait_for(self, script, seconds=20):
        """Return the expression's value once it is true."""
        deadline = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"never true: {script}"
            time.sleep(0.02)
        return value

    def press(self, key, code, text=""):
        """Press and release one key."""
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def close(self):
        """End the browser."""
        os.close(self.out)
        self.process.terminate()
        self.process.wait(timeout=10)
        os.close(self.inp)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """One Chromium for all tests; skipped where none is installed."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    chromium = Browser(tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()
