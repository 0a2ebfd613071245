"""Runs with known miscalibration, and a real browser driven through Chromium's debugging pipe."""

import json
import os
import select
import shutil
import subprocess
import time

import numpy as np
import pytest
import torch

from semmix._files import write_json, write_tensors
from semmix.report import Gallery

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def make_logits(num: int, num_classes: int, sharpness: float, seed: int):
    """Return logits whose honest probabilities are softmax(logits / sharpness), and labels."""
    draw = np.random.default_rng(seed)
    honest = draw.normal(size=(num, num_classes)) * 2.2
    probs = np.exp(honest) / np.exp(honest).sum(1, keepdims=True)
    labels = (draw.random((num, 1)) > probs.cumsum(1)).sum(1).clip(0, num_classes - 1)
    return torch.tensor(honest * sharpness).float(), torch.tensor(labels)


def write_run(folder, method, seed, sharpness=1.0, num=600, num_classes=4, **details):
    """Write a finished run folder: over-confident where sharpness > 1.

    `details` may hold `options` and `mixed`, or replace any other setting.
    """
    for offset, split in enumerate(("val", "test")):
        logits, labels = make_logits(num, num_classes, sharpness, seed=10 * seed + offset)
        tensors = {"logits": logits.bfloat16(), "labels": labels}
        write_tensors(folder / f"logits-{split}.safetensors", tensors)
    details = {"dataset": "digits", "mixed": None, "leak": False, "finished": True, **details}
    inputs = {"dataset": details.pop("dataset"), "mixed": details.pop("mixed")}
    ends = {key: details.pop(key) for key in ("leak", "finished")}
    config = {"method": method, "options": {}, "classifier": "small", "epochs": 5, "seed": seed}
    inputs["config"] = {**config, **details}
    write_json(folder / "config.json", {"kind": "run", "format": 1, "inputs": inputs, **ends})
    command = f"semmix train digits --method {method} --seed {seed}"
    env = {"semmix": "0.1.0", "gpu": None, "command": command, "started": "2026-01-02T03:04:05"}
    write_json(folder / "env.json", env)
    lines = [
        {"epoch": e, "nimg": 100 * e, "loss": 2 / e, "lr": 0.1, "val_acc": 0.5 + e / 20,
         "val_nll": sharpness / e, "val_ece": sharpness / 20, "val_oe": sharpness / 30}
        for e in range(1, 6)
    ]  # fmt: skip
    (folder / "stats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="session")
def make_run():
    """The function that writes a run folder."""
    return write_run


@pytest.fixture(scope="session")
def run_folders(tmp_path_factory):
    """Three seeds of an over-confident baseline and of a well calibrated method."""
    root = tmp_path_factory.mktemp("runs")
    return [
        write_run(root / f"{method}-{seed}", method, seed, sharpness)
        for method, sharpness in (("ce", 2.0), ("csm", 1.05))
        for seed in range(3)
    ]


@pytest.fixture(scope="session")
def gallery():
    """Four sets of five 6 x 6 images that fade from one class to the other."""
    lam = np.linspace(0, 1, 5)
    images = (lam[None, :, None, None, None] * 255 * np.ones((4, 5, 3, 6, 6))).astype(np.uint8)
    return Gallery(
        images=images,
        pairs=[(0, 1), (0, 2), (1, 3), (2, 3)],
        lam_requested=np.tile(lam, (4, 1)),
        lam=np.tile(lam**2, (4, 1)),
    )


class Browser:
    """Headless Chromium spoken to in JSON over two pipes, so that no driver is needed."""

    def __init__(self, profile):
        to_chromium, self.out = os.pipe()
        self.inp, from_chromium = os.pipe()
        options = "--headless --no-sandbox --disable-gpu --hide-scrollbars --remote-debugging-pipe"
        shell = f'exec "$0" {options} --user-data-dir="$1" 3<&{to_chromium} 4>&{from_chromium}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, str(CHROMIUM), str(profile)],
            pass_fds=(to_chromium, from_chromium), stderr=subprocess.DEVNULL,
        )  # fmt: skip
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

    def open(self, path, width=1280, height=900, dark=False, media=""):
        """Load a file at a window size and colour scheme; forget what was noted before."""
        self.complaints.clear()
        self.requests.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.call("Emulation.setDeviceMetricsOverride", mobile=width < 600, **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.call("Page.navigate", url=f"file://{path}")
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
    """One Chromium for all tests of this folder; skipped where none is installed."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    chromium = Browser(tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()
