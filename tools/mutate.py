"""Put small faults into the code, one at a time, and say which of them no test notices.

    python tools/mutate.py map                           # once: which test runs which function, and for how long
    python tools/mutate.py run --sample 400 --seed 1     # a fresh sample over all rooms
    python tools/mutate.py run --room report --sample 60
    python tools/mutate.py run --again runs/mutation/report.jsonl    # those that survived, after new tests

A shadow of the repository holds copies of src/ and tests/ and links to the rest, so that tests which start
processes see the fault too. One parent loads torch and the like once and forks for every fault. The tests of the
module's mirror file run first, then the fastest of those that enter the function; the first failure ends the run.
Every verdict is a line of JSON.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import contextlib
import importlib
import json
import os
import py_compile
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

PACKAGE = "src/semmix"
PRELOADED = """pytest hypothesis numpy torch torchmetrics scipy.stats scipy.optimize sklearn.isotonic
    sklearn.linear_model sklearn.datasets sklearn.calibration PIL.Image safetensors.torch tyro rich.progress jinja2
    matplotlib.pyplot"""
COMPARED = {"<": ("<=", ">"), "<=": ("<", ">"), ">": (">=", "<"), ">=": (">", "<"), "==": ("!=",), "!=": ("==",)}
COMPARED |= {"is": ("is not",), "is not": ("is",), "in": ("not in",), "not in": ("in",)}
COMPUTED = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*"}
SYMBOLS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is"}
SYMBOLS |= {ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in", ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
SYMBOLS |= {ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.And: "and", ast.Or: "or"}


@dataclass(frozen=True)
class Mutant:
    """One fault: bytes `start` to `stop` of a file give way to `text`."""

    path: str
    line: int
    function: str
    kind: str
    start: int
    stop: int
    text: bytes

    def apply(self, source: bytes) -> bytes:
        """Return the source with the fault in it."""
        return source[: self.start] + self.text + source[self.stop :]

    def described(self, source: bytes) -> dict:
        """Return place, kind and the changed line before and after, as a diff shows them."""
        before, after = source.splitlines(), self.apply(source).splitlines()
        last = min(len(before), len(after)) - 1  # where the fault takes away the end of the file
        row = next((k for k, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), last)
        change = {"before": before[row].decode().strip(), "after": after[row].decode().strip()}
        return {"path": self.path, "line": row + 1, "kind": self.kind, "function": self.function, **change}


class Finder:
    """All faults that can be put into one file."""

    def __init__(self, root: Path, path: str) -> None:
        self.path, self.source = path, (root / path).read_bytes()
        self.starts = [0]
        for line in self.source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def find(self) -> list[Mutant]:
        """Return the faults; some leave what is no longer Python."""
        return list(self._visit(ast.parse(self.source), ()))

    def _begin(self, node: ast.AST) -> int:
        return self.starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]

    def _end(self, node: ast.AST) -> int:
        return self.starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def _text(self, node: ast.AST) -> bytes:
        return self.source[self._begin(node) : self._end(node)]

    def _visit(self, node: ast.AST, names: tuple[str, ...]) -> Iterator[Mutant]:
        """Walk the code; leave out annotations, decorators, docstrings and what f-strings hold."""
        function = ".".join(names).removesuffix(".<locals>")
        for kind, start, stop, text in self._faults(node):
            yield Mutant(self.path, self.source.count(b"\n", 0, start) + 1, function, kind, start, stop, text)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = (*names, node.name, "<locals>")
        elif isinstance(node, ast.ClassDef):
            names = (*names, node.name)
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "bases"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr | ast.Import | ast.ImportFrom):
                    yield from self._visit(child, names)

    def _faults(self, node: ast.AST) -> Iterator[tuple[str, int, int, bytes]]:
        """Yield the faults of one node as kind, first byte, last byte, new text."""
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for left, op, right in zip(operands, node.ops, operands[1:], strict=False):
                    yield from self._operator(left, op, right, COMPARED[SYMBOLS[type(op)]], "comparison")
            case ast.BinOp() if type(node.op) in SYMBOLS:
                yield from self._operator(node.left, node.op, node.right, (COMPUTED[SYMBOLS[type(node.op)]],), "sign")
            case ast.BoolOp():
                other = "or" if isinstance(node.op, ast.And) else "and"
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from self._operator(left, node.op, right, (other,), "and/or")
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                kind = "not" if isinstance(node.op, ast.Not) else "sign"
                yield kind, self._begin(node), self._begin(node.operand), b""
            case ast.Constant(value=bool() | int() | float()):
                for value in _other_values(node.value):
                    text = f"({value})" if str(value).startswith("-") else str(value)
                    yield "constant", self._begin(node), self._end(node), text.encode()
            case ast.If() | ast.IfExp():
                text = b"not (" + self._text(node.test) + b")"
                yield "condition", self._begin(node.test), self._end(node.test), text
            case ast.Slice():
                for bound in (node.lower, node.upper):
                    if bound is not None:
                        yield "slice", self._begin(bound), self._end(bound), b""
            case ast.Raise() | ast.Continue() | ast.Break() | ast.AugAssign() | ast.Expr(value=ast.Call()):
                yield "dropped", self._begin(node), self._end(node), b"pass"
            case ast.Return(value=ast.AST()):
                yield "dropped", self._begin(node), self._end(node), b"return None"
            case ast.Call(args=[first, second, *_]) if not isinstance(first, ast.Starred):
                if not isinstance(second, ast.Starred) and self._text(first) != self._text(second):
                    between = self.source[self._end(first) : self._begin(second)]
                    text = self._text(second) + between + self._text(first)
                    yield "swapped", self._begin(first), self._end(second), text
            case ast.keyword(arg="dim" | "axis", value=ast.Constant(value=int(value))):
                yield "axis", self._begin(node.value), self._end(node.value), b"0" if value else b"1"

    def _operator(self, left: ast.AST, op: ast.AST, right: ast.AST, others: Iterable[str], kind: str):
        start, stop = self._end(left), self._begin(right)
        pattern = re.escape(SYMBOLS[type(op)]).replace(r"\ ", r"\s+").encode()
        for other in others:
            yield kind, start, stop, re.sub(pattern, other.encode(), self.source[start:stop], count=1)


def _other_values(value: float | bool) -> list[float | bool]:
    if isinstance(value, bool):
        return [not value]
    return list(dict.fromkeys([value + 1, value - 1, *([2 * value] if value else [])]))


def _is_python(source: bytes) -> bool:
    with contextlib.suppress(SyntaxError, ValueError):
        compile(source, "mutant", "exec", dont_inherit=True)
        return True
    return False


def room_of(path: str) -> str:
    """Return the room of a source file: its folder under the package, or its name."""
    return path.removeprefix(f"{PACKAGE}/").split("/")[0].removesuffix(".py")


def draw_sample(root: Path, count: int, seed: int, rooms: list[str]) -> list[Mutant]:
    """Draw lines over the rooms by their size, and one fault on each line."""
    places: dict[str, dict[tuple[str, int], list[Mutant]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(str(path.relative_to(root)) for path in (root / PACKAGE).rglob("*.py")):
        if not rooms or room_of(path) in rooms:
            for mutant in Finder(root, path).find():
                places[room_of(path)][path, mutant.line].append(mutant)
    total, chosen = sum(map(len, places.values())), []
    shares = {room: count * len(found) / total for room, found in places.items()}
    counts = {room: int(share) for room, share in shares.items()}
    for room in sorted(shares, key=lambda r: counts[r] - shares[r])[: count - sum(counts.values())]:
        counts[room] += 1
    for room, found in places.items():
        draws = random.Random(f"{seed}/{room}")
        for place in sorted(draws.sample(sorted(found), min(counts[room], len(found)))):
            source = (root / place[0]).read_bytes()
            faults = draws.sample(found[place], len(found[place]))
            chosen += [fault for fault in faults if _is_python(fault.apply(source))][:1]
    return chosen


class Shadow:
    """A folder like the repository, whose src/ may be spoiled."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder, self.told = root, folder, folder.with_suffix(".json")
        self.log = folder.with_suffix(".log")
        folder.mkdir()
        skipped = shutil.ignore_patterns("__pycache__")
        for entry in root.iterdir():
            if entry.name in ("src", "tests"):
                shutil.copytree(entry, folder / entry.name, ignore=skipped)
            elif entry.name not in (".git", "runs", "site", "demo"):
                (folder / entry.name).symlink_to(entry.resolve())
        checked = py_compile.PycInvalidationMode.CHECKED_HASH  # compiled once, and again where the content differs
        compileall.compile_dir(folder / "src", quiet=2, invalidation_mode=checked)

    def spoil(self, mutant: Mutant | None) -> None:
        """Have this fault in src/ and no other."""
        for path in [mutant.path] if mutant else []:
            (self.folder / path).write_bytes(mutant.apply((self.root / path).read_bytes()))

    def restore(self, mutant: Mutant | None) -> None:
        """Undo `spoil`."""
        for path in [mutant.path] if mutant else []:
            shutil.copyfile(self.root / path, self.folder / path)


class Witness:
    """A pytest plugin: which functions each test enters, how long it takes, which fails first."""

    def __init__(self, folder: Path, out: Path, trace: bool) -> None:
        self.prefix, self.out, self.trace = f"{folder}/", out, trace
        self.shared: set[str] = set()
        self.tests: dict[str, dict] = defaultdict(lambda: {"seconds": 0.0, "passed": True, "functions": set()})
        self.failed = ""

    def pytest_runtest_logreport(self, report) -> None:
        self.tests[report.nodeid]["seconds"] += report.duration
        if report.outcome != "passed":
            self.tests[report.nodeid]["passed"] = False
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_runtest_setup(self) -> None:
        self._watch(self.shared)

    def pytest_runtest_call(self, item) -> None:
        self._watch(self.tests[item.nodeid]["functions"])

    def pytest_runtest_teardown(self) -> None:
        sys.settrace(None)

    def _watch(self, seen: set[str]) -> None:
        """Note every function of the package that is entered from now on."""

        def enter(frame: FrameType, _event: str, _argument: object) -> None:
            code = frame.f_code
            if code.co_filename.startswith(self.prefix):
                seen.add(f"{code.co_filename.removeprefix(self.prefix)}:{code.co_qualname}")

        if self.trace:
            sys.settrace(enter)
            threading.settrace(enter)

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)
        for test in self.tests.values():  # a fixture made for one test serves the others of its file
            test["functions"] = sorted(test["functions"] | self.shared)
        self.out.write_text(json.dumps({"failed": self.failed, "tests": self.tests if self.trace else {}}))


@dataclass(frozen=True)
class Job:
    """Tests to run in a process of their own, with a fault or without."""

    tests: list[str]
    seconds: float
    mutant: Mutant | None = None


def run_jobs(jobs: list[Job], root: Path, options: argparse.Namespace, done: Callable[[Job, str, dict], None]) -> None:
    """Run each job in a fork of this process, some at a time; tell `done` its verdict and what the witness wrote."""
    for name in options.preload.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutate-") as scratch:
        free = [Shadow(root, Path(scratch) / str(k)) for k in range(min(options.jobs, len(jobs)))]
        waiting, running = list(reversed(jobs)), {}
        while waiting or running:
            while waiting and free:
                job, shadow = waiting.pop(), free.pop()
                running[_start(job, shadow)] = job, shadow, time.monotonic() + job.seconds
            for pid, (job, shadow, deadline) in list(running.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                late = time.monotonic() > deadline
                if not (ended or late):
                    continue
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # and what the tests started
                if not ended:
                    os.waitpid(pid, 0)
                del running[pid]
                shadow.restore(job.mutant)
                free.append(shadow)
                seen = json.loads(shadow.told.read_text()) if shadow.told.exists() else {"log": shadow.log.read_text()}
                done(job, "timeout" if not ended else "survived" if status == 0 else "killed", seen)
            time.sleep(0.02)


def _start(job: Job, shadow: Shadow) -> int:
    """Fork a process that runs the job's tests in the shadow; return its id."""
    shadow.told.unlink(missing_ok=True)
    shadow.spoil(job.mutant)
    if pid := os.fork():
        return pid
    status = 1
    try:
        os.setsid()
        os.chdir(shadow.folder)
        with open(os.devnull) as nothing, open(shadow.log, "wb") as log:
            for target, source in ((0, nothing), (1, log), (2, log)):
                os.dup2(source.fileno(), target)
        source = str(shadow.folder / "src")
        sys.path.insert(0, source)
        os.environ["PYTHONPATH"] = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
        import pytest

        preloaded = "ignore:Module already imported so cannot be rewritten"
        witness = Witness(shadow.folder, shadow.told, trace=job.mutant is None)
        stop = ["-x"] if job.mutant else []
        status = int(pytest.main(["-q", *stop, "-p", "no:cacheprovider", "-W", preloaded, *job.tests], [witness]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def make_map(root: Path, out: Path, options: argparse.Namespace) -> None:
    """Run test files with a witness and keep, for every test that passes, its time and the functions it enters."""
    known = json.loads(out.read_text()) if out.exists() else {}
    files = [file for path in options.paths or ["tests"] for file in _test_files(root / path)]
    names = [str(file.relative_to(root)) for file in files] + ([] if options.paths else ["src"])

    def done(job: Job, verdict: str, seen: dict) -> None:
        (name,) = job.tests
        for test in [test for test in known if test.startswith(f"{name}::") or (name == "src" and test[:4] == "src/")]:
            del known[test]
        if "log" in seen and verdict != "timeout":
            print(seen["log"][-3000:])
        passed = {test: entry for test, entry in seen.get("tests", {}).items() if entry["passed"]}
        known.update(passed)
        out.write_text(json.dumps(known))
        seconds = sum(entry["seconds"] for entry in passed.values())
        failed = f", first failure {seen['failed']}" if seen.get("failed") else " TOO SLOW" * (verdict == "timeout")
        print(f"{name}: {len(passed)} tests in {seconds:.0f} s{failed}", flush=True)

    out.parent.mkdir(parents=True, exist_ok=True)
    run_jobs([Job([name], 1800) for name in names], root, options, done)


def _test_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("test_*.py"))


def choose_tests(mutant: Mutant, known: dict[str, dict], seconds: float) -> tuple[list[str], float]:
    """Return the tests that can see a fault, the module's own first, then the fastest, for so many seconds."""
    stem = Path(mutant.path).stem.strip("_")
    mirror = f"tests/{room_of(mutant.path)}/test_{stem}"

    def can_see(functions: list[str]) -> bool:
        return f"{mutant.path}:{mutant.function}" in functions

    seeing = [test for test, entry in known.items() if can_see(entry["functions"])]
    if not seeing:  # code that runs on import, or in another process
        prefix = f"{mutant.path}:"
        seeing = [test for test, entry in known.items() if any(f.startswith(prefix) for f in entry["functions"])]
    seeing = seeing or [test for test in known if test.startswith((f"tests/{room_of(mutant.path)}", "tests/cli"))]
    seeing.sort(key=lambda test: (not test.startswith(mirror), known[test]["seconds"]))
    chosen, total = [], 0.0
    for test in seeing:
        if chosen and total + known[test]["seconds"] > seconds:
            break
        chosen.append(test)
        total += known[test]["seconds"]
    return chosen, total


def run_mutants(
    root: Path, mutants: list[Mutant], known: dict[str, dict], out: Path, options: argparse.Namespace
) -> None:
    """Test every fault that `out` does not know yet, write what comes of it there, and print a summary by room."""
    lines = out.read_text().splitlines() if options.resume and out.exists() else []
    results = [json.loads(line) for line in lines]
    judged = {(r["path"], r["line"], r["after"]) for r in results}
    described = {mutant: mutant.described((root / mutant.path).read_bytes()) for mutant in mutants}
    left = [m for m, d in described.items() if (d["path"], d["line"], d["after"]) not in judged]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(f"{line}\n" for line in lines))

    def done(job: Job, verdict: str, seen: dict) -> None:
        assert job.mutant
        result = {**described[job.mutant], "verdict": verdict, "tests": len(job.tests), "by": seen.get("failed", "")}
        results.append(result)
        with out.open("a") as file:
            file.write(json.dumps(result) + "\n")
        change = "" if verdict == "killed" else f"\n    - {result['before']}\n    + {result['after']}"
        place = f"{result['path']}:{result['line']}"
        print(f"{len(results):4} {verdict:8} {place} {result['kind']} ({len(job.tests)} tests){change}", flush=True)

    jobs = []
    for mutant in left:
        tests, seconds = choose_tests(mutant, known, options.seconds)
        jobs.append(Job(tests, options.limit + 5 * seconds, mutant))
    run_jobs(jobs, root, options, done)
    print(summary(results))


def summary(results: list[dict]) -> str:
    """Return how many faults were noticed, by room."""
    rooms: dict[str, Counter] = defaultdict(Counter)
    for result in results:
        rooms[room_of(result["path"])][result["verdict"]] += 1
        rooms["all"][result["verdict"]] += 1
    lines = [f"{'room':12} faults noticed survived"]
    for room in [*sorted(rooms.keys() - {"all"}), "all"]:
        count, survived = rooms[room].total(), rooms[room]["survived"]
        lines.append(f"{room:12} {count:6} {(count - survived) / max(count, 1):7.1%} {survived:8}")
    return "\n".join(lines)


def survivors(root: Path, report: Path) -> list[Mutant]:
    """Return the faults that survived in an earlier report and can still be made."""
    kept = {
        (r["path"], r["before"], r["after"])
        for r in map(json.loads, report.read_text().splitlines())
        if r["verdict"] == "survived"
    }
    found = {}
    for path in sorted({path for path, _, _ in kept if (root / path).exists()}):
        finder = Finder(root, path)
        for mutant in finder.find():
            described = mutant.described(finder.source)
            key = (path, described["before"], described["after"])
            if key in kept and key not in found:
                found[key] = mutant
    return list(found.values())


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["map", "run"])
    parser.add_argument("paths", nargs="*", help="map: test files or folders to map anew; all by default")
    parser.add_argument("--sample", type=int, default=100, help="faults to draw")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--room", action="append", default=[], help="only this room; may be repeated")
    parser.add_argument("--again", type=Path, help="instead of a sample: those that survived in this report")
    parser.add_argument("--jobs", type=int, default=2, help="tests to run at a time")
    parser.add_argument("--seconds", type=float, default=60, help="of tests for one fault, at most")
    parser.add_argument(
        "--limit", type=float, default=30, help="seconds above what the tests need, then it is a timeout"
    )
    parser.add_argument("--resume", action="store_true", help="keep the verdicts that the report holds")
    parser.add_argument("--out", type=Path, help="the report; runs/mutation/report.jsonl by default")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the repository")
    parser.add_argument("--preload", default=PRELOADED, help="modules that are loaded once, before the forks")
    options = parser.parse_args()
    root, folder = options.root.resolve(), options.root.resolve() / "runs" / "mutation"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if options.task == "map":
        make_map(root, folder / "map.json", options)
        return 0
    if not (folder / "map.json").exists():
        raise SystemExit("no map of the tests yet\n  -> python tools/mutate.py map")
    known = json.loads((folder / "map.json").read_text())
    mutants = (
        survivors(root, options.again)
        if options.again
        else draw_sample(root, options.sample, options.seed, options.room)
    )
    run_mutants(root, mutants, known, options.out or folder / "report.jsonl", options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
