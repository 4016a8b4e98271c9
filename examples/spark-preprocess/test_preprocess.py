"""Tests of the example: what is written is what one process would write, whatever the corpus holds and whoever dies.

MUSTER_SOAK=1 adds megatron-core's reader, an executor that is killed, and the time with two cores against that with
one (MUSTER_SPARK_MB: how large its corpus is, 1000)."""
import base64
import gzip
import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import corpus  # noqa: E402
import indexed  # noqa: E402
import onepart  # noqa: E402
import pyspark_preprocess  # noqa: E402
import vocabulary  # noqa: E402

SOAK = os.environ.get("MUSTER_SOAK") == "1"
LIMIT = 300  # seconds after which a program hangs
BAD = ['{"text": "broken', "", "[1, 2]", '{"title": "none"}', '{"text": 5}', '{"text": "\\ud800"}', "   ", '{"text": ""}',
       "[" * 2000, '{"text": "' + "x" * 3000 + '"}']
BAD_KINDS = {"broken-json": 2, "empty-line": 2, "not-an-object": 1, "missing-field": 1, "not-text": 2, "no-tokens": 1, "too-long": 1}


def documents(prefix):
    tokens, sizes = indexed.read(prefix)
    ends = list(itertools.accumulate(int(s) for s in sizes))
    return [tokens[end - size:end].tolist() for end, size in zip(ends, sizes)]


def written(prefix):
    found = []
    for end in ".bin", ".idx":
        with open(prefix + end, "rb") as file:
            found.append(file.read())
    return found


def sentences(count, seed=1):
    r = random.Random(seed)
    words = ["".join(r.choices("abcdefghijklmnopqrstuvwxyzäß", k=r.randint(1, 9))) for _ in range(500)]
    return [" ".join(r.choices(words, k=r.randint(3, 40))) for _ in range(count)]


class Example(unittest.TestCase):
    limit = LIMIT

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = folder.name
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.dir)

    def write(self, name, lines):
        with open(name, "w") as file:
            file.writelines(line + "\n" for line in lines)
        return name

    def corpus(self, count=200, name="in.jsonl"):
        return self.write(name, (json.dumps({"text": s, "title": s[:5]}) for s in sentences(count)))

    def run_it(self, *options, status=0, front=(sys.executable,), tokenizer="CharLevelTokenizer", env=()):
        spark = () if front != (sys.executable,) else ("--without-spark",)
        line = [*front, os.path.join(HERE, "pyspark_preprocess.py"), *spark, "--tokenizer-type", tokenizer, "--output-prefix", "out", *options]
        got = subprocess.run(line, capture_output=True, text=True, timeout=self.limit, env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1", **dict(env)))
        # spark-submit has both streams of the program on its own output.
        said = "\n".join(line for line in (got.stdout + got.stderr).splitlines() if " INFO " not in line)
        self.assertEqual(got.returncode, status, said)
        return said


class Lines(Example):
    def test_each_line_is_in_one_part(self):
        lines = ["", "a", "bb", "", "x" * 30, "ccc", ""]
        for end in "\n", "":
            with open("in", "w") as file:
                file.write("\n".join(lines) + end)
            want = [line.encode() + b"\n" for line in lines[:-1]] + ([b"\n"] if end else [])
            for size in range(1, os.path.getsize("in") + 2):
                parts = corpus.divide(["in"], 1, size)
                self.assertEqual([line for part in parts for line in corpus.lines(part, 100)], want, size)
                self.assertEqual([n for part in parts for n in corpus.lines(part, 10) if isinstance(n, int)], [31], size)

    def test_archives_are_whole(self):
        import zstandard
        self.corpus()
        with open("in.jsonl", "rb") as file:
            plain = file.read()
        with open("two.jsonl.zst", "wb") as file:  # of two frames, as lm_dataformat writes it
            for half in plain[:999], plain[999:]:
                file.write(zstandard.compress(half))
        with gzip.open("one.jsonl.gz", "wb") as file:
            file.write(plain)
        for name in "two.jsonl.zst", "one.jsonl.gz":
            (part,) = corpus.divide([name], 5, 10)
            self.assertEqual(b"".join(corpus.lines(part, 1 << 20)), plain)
            os.truncate(name, os.path.getsize(name) - 20)
            with self.assertRaisesRegex(corpus.CorpusError, "cannot read .*" + name):
                list(corpus.lines(part, 1 << 20))
        self.assertIn("it was cut off; the parts that are finished are kept", self.run_it("--input", "in.jsonl,two.jsonl.zst", status=1))
        self.assertFalse(os.path.exists("out_text_document.bin"))


class OneProcess(Example):
    def test_bad_lines_are_counted_and_named(self):
        good = [json.dumps({"text": s}) for s in sentences(20)]
        self.write("a.jsonl", good[:3] + BAD + good[3:])
        with open("a.jsonl", "ab") as file:
            file.write(b'{"text": "\xff"}\n' + good[0].encode())  # no UTF-8; and no line break at the end
        self.write("b.jsonl", ["", good[1]])
        said = self.run_it("--input", "a.jsonl,b.jsonl", "--workers", "9", "--max-line-bytes", "2500")
        kinds = BAD_KINDS | {"broken-json": 3, "empty-line": 3}
        self.assertIn("12 of 34 lines are left out: " + ", ".join(f"{kinds[k]} {k}" for k in corpus.KINDS), said)
        for line in ("a.jsonl:4: broken-json: Unterminated string", "a.jsonl:7: missing-field: it has no field 'text'",
                     "a.jsonl:13: too-long: 3013 bytes, more than 2500", "a.jsonl:31: broken-json: 'utf-8' codec", "b.jsonl:1: empty-line"):
            self.assertIn(f"{self.dir}/{line}", said)
        self.assertEqual(documents("out_text_document"), [list(json.loads(line)["text"].encode()) for line in good + good[:2]])
        os.rename("out_text_document.bin", "elsewhere")
        os.remove("out_text_document.idx")
        said = self.run_it("--input", "a.jsonl", "--fatal", "missing-field", status=1)
        self.assertIn("missing-field: it has no field 'text'. --fatal missing-field ends the job", said)
        self.assertFalse(os.path.exists("out_text_document.idx"))
        self.run_it("--input", "a.jsonl")  # goes on without

    def test_lines_of_100_mb_need_no_memory(self):
        with open("in.jsonl", "wb") as file:
            for _ in range(2):
                file.write(b'{"text": "')
                for _ in range(100):
                    file.write(b"x" * 1_000_000)
                file.write(b'"}\n')
            file.write(b'{"text": "ab"}\n')
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        said = self.run_it("--input", "in.jsonl", "--max-line-bytes", "1000000")
        self.assertIn("2 of 3 lines are left out: 2 too-long", said)
        self.assertEqual(documents("out_text_document"), [[97, 98]])
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, max(before, 90_000))

    def test_output_is_not_overwritten_and_parts_are_kept(self):
        self.corpus()
        line = "--input", "in.jsonl", "--workers", "4", "--append-eod", "--jsonl-keys", "text", "title"
        self.run_it(*line)
        self.assertTrue(all(d[-1] == 0 for d in documents("out_title_document")))
        want = written("out_text_document")
        self.assertIn("out_text_document.bin exists, and is not overwritten", self.run_it(*line, status=2))
        for name in "out_text_document", "out_title_document":
            os.remove(name + ".bin")
            os.remove(name + ".idx")

        # A run that was ended before its third part.
        sys.argv = ["x", *line, "--output-prefix", "out", "--tokenizer-type", "CharLevelTokenizer"]
        args = pyspark_preprocess.command_line()
        options = pyspark_preprocess.options_of(args)
        os.mkdir("out_parts")
        parts = pyspark_preprocess.plan(args, options, "out_parts")
        for part in parts[:2]:
            onepart.tokenize(part, "out_parts", options)
        open("out_parts/000002.attempt.0.bin", "wb").close()
        self.assertIn("parts of another run: keys", self.run_it(*line[:-1], status=2))
        self.assertIn("2 of 4 parts are there already", self.run_it(*line, "--workers", "9"))
        self.assertEqual(written("out_text_document"), want)
        self.assertFalse(os.path.exists("out_parts"))

    def test_what_cannot_be_is_refused(self):
        self.corpus(3)
        self.write("empty.jsonl", [])
        for options, words in {
            ("--input", "none.jsonl"): "there is no file",
            ("--input", "hdfs://a/b"): "where this machine and all executors see them",
            ("--input", "in.jsonl", "--dataset-impl", "lazy"): "Megatron reads mmap alone",
            ("--input", "in.jsonl", "--jsonl-keys", "a/b"): "cannot be part of a file's name",
            ("--input", "in.jsonl", "--workers", "0"): "has to be at least 1",
            ("--input", "in.jsonl", "--tokenizer-type", "HFTokenizer"): "HFTokenizer needs --vocab-file FILE",
            ("--input", "in.jsonl", "--tokenizer-type", "HFTokenizer", "--vocab", "in.jsonl"): "cannot read the vocabulary of HFTokenizer",
            ("--input", "in.jsonl", "--tokenizer-type", "HFGPT2Tokenizer"): "nothing is downloaded",
        }.items():
            self.assertIn(words, self.run_it(*options, status=2))
        self.assertIn("has no document with 'nothing'", self.run_it("--input", "in.jsonl,empty.jsonl", "--jsonl-keys", "nothing", status=1))


class Tokenizers(Example):
    def make(self, kind, **more):
        return vocabulary.make({"tokenizer_type": kind, "vocab_file": None, "merge_file": None, "eod_token": None, "append_eod": True} | more)

    def test_each(self):
        from tokenizers.implementations import ByteLevelBPETokenizer
        texts = sentences(100)
        trained = ByteLevelBPETokenizer()
        trained.train_from_iterator(texts, vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False)
        want = [trained.encode(t).ids for t in texts]
        trained.save_model(".")
        trained.enable_truncation(5)
        trained.enable_padding(length=50)
        trained.save("tokenizer.json")
        self.write("v.tiktoken", (f"{base64.b64encode(t).decode()} {i}" for i, t in enumerate([*(bytes([b]) for b in range(256)), b"ab"])))
        for made in (self.make("HFTokenizer", vocab_file="tokenizer.json"), self.make("HFGPT2Tokenizer", vocab_file="."),
                     self.make("GPT2BPETokenizer", vocab_file="vocab.json", merge_file="merges.txt")):
            self.assertEqual((made.encode(texts), made.end, made.size), (want, 0, 400))
        tiktoken = self.make("TiktokenTokenizer", vocab_file="v.tiktoken")
        self.assertEqual((tiktoken.encode(["cab"]), tiktoken.end, tiktoken.size), ([[99, 256]], 257, 258))
        with self.assertRaisesRegex(vocabulary.VocabularyError, "has no <x>; name its token with --eod-token"):
            self.make("HFTokenizer", vocab_file="tokenizer.json", eod_token="<x>")
        self.assertEqual([indexed.token_type(n).name for n in (65499, 65500)], ["uint16", "int32"])


def spark_submit():
    """The program and its variables, or why there is none."""
    try:
        import pyspark
        subprocess.run(["java", "-version"], check=True, capture_output=True)
    except (ImportError, OSError) as err:
        if os.environ.get("MUSTER_TEST_REQUIRE") == "1":
            raise
        raise unittest.SkipTest(f"Spark cannot run here: {err}") from err
    home = os.path.dirname(pyspark.__file__)
    return (home + "/bin/spark-submit",), {"SPARK_HOME": home, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}


class Spark(Example):
    """By the line of DLRover's guide: with threads of one process, or on a cluster of two executors."""

    def submit(self, *options, conf=(), master="local-cluster[2,1,512]", status=0):
        program, env = spark_submit()
        env |= {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}  # it starts with less work
        local = {"spark.executor.memory": "512m", "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
                 "spark.driver.bindAddress": "127.0.0.1", "spark.local.dir": self.dir} | dict(conf)
        front = (*program, "--master", master, "--executor-cores=1", "--num-executors=2",
                 *(word for k, v in local.items() for word in ("--conf", f"{k}={v}")))
        return self.run_it("--vocab", "tokenizer.json", *options, front=front, tokenizer="HFTokenizer", env=env | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": self.dir + "/work"},
                           status=status)

    def tokenizer(self):
        from tokenizers.implementations import ByteLevelBPETokenizer
        trained = ByteLevelBPETokenizer()
        trained.train_from_iterator(sentences(300), vocab_size=2000, special_tokens=["<|endoftext|>"], show_progress=False)
        trained.save("tokenizer.json")

    def alone(self, *options):
        self.run_it("--vocab", "tokenizer.json", *options, tokenizer="HFTokenizer")
        return {"out_text_document": self.removed("out_text_document")}

    def removed(self, name):
        """What stands in a data set, which is removed."""
        content = written(name)
        os.remove(name + ".bin")
        os.remove(name + ".idx")
        return content

    def test_writes_what_one_process_writes(self):
        self.corpus(300)
        self.tokenizer()
        line = "--input", "in.jsonl", "--append-eod", "--jsonl-keys", "text", "--workers", "6", "--append-eod"
        want = self.alone(*line)
        said = self.submit(*line, master="local-cluster[2,1,512]" if SOAK else "local[2]")
        self.assertIn("300 documents, 6 of 6 parts", said)
        self.assertEqual({name: written(name) for name in want}, want)
        if SOAK:
            self.megatron("out_text_document")

    def megatron(self, prefix):
        """megatron-core reads the same tokens."""
        cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "muster-dev")
        (python,) = [os.path.join(cache, n, "bin/python") for n in os.listdir(cache) if n.startswith("megatron-core-")]
        got = subprocess.run([python, "-c", "import json, sys; from megatron.core.datasets.indexed_dataset import IndexedDataset as D\n"
                              "d = D(sys.argv[1]); print(json.dumps([[int(t) for t in d[i]] for i in range(len(d))]))\n"
                              "assert list(d.document_indices) == list(range(len(d) + 1))", prefix],
                             capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertEqual(json.loads(got.stdout.splitlines()[-1]), documents(prefix))

    @unittest.skipUnless(SOAK, "MUSTER_SOAK=1 runs it")
    def test_an_executor_that_is_killed_loses_nothing(self):
        self.corpus(30000)
        self.tokenizer()
        line = "--input", "in.jsonl", "--append-eod", "--workers", "40"
        want = self.alone(*line)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                self.submit(*line)
                status = 0
            finally:
                os._exit(status)
        try:
            killed = 0
            for _ in range(LIMIT * 10):
                there = [n for n in os.listdir("out_parts") if n.endswith(".json")] if os.path.isdir("out_parts") else []
                executors = subprocess.run(["pgrep", "-f", "CoarseGrainedExecutorBackend"], capture_output=True, text=True).stdout.split()
                executors = [p for p in executors if self.is_ours(p)]
                if len(there) > 3 and executors:
                    os.kill(int(executors[0]), signal.SIGKILL)
                    killed += 1
                    break
                time.sleep(0.1)
            self.assertEqual(killed, 1)
        finally:
            _, status = os.waitpid(pid, 0)
        self.assertEqual(status, 0)
        self.assertEqual({name: written(name) for name in want}, want)

    def is_ours(self, pid):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                return self.dir.encode() in file.read()
        except OSError:
            return False

    @unittest.skipUnless(SOAK, "MUSTER_SOAK=1 runs it")
    def test_two_cores_are_faster_than_one(self):
        size = int(os.environ.get("MUSTER_SPARK_MB", "1000")) * 1_000_000
        self.limit = LIMIT + size // 500_000  # four times what one process takes on a machine that does nothing else
        self.corpus(20000, "some.jsonl")
        with open("some.jsonl", "rb") as file:
            some = file.read()
        with open("in.jsonl", "wb") as file:
            for _ in range(-(-size // len(some))):
                file.write(some)
        self.tokenizer()
        line = "--input", "in.jsonl", "--append-eod", "--part-bytes", str(max(1 << 20, size // 40)), "--log-interval", "1000000"
        began = time.monotonic()
        want = self.alone(*line)
        one, times = time.monotonic() - began, {}
        for master in "local[2]", "local-cluster[2,1,512]":
            began = time.monotonic()
            self.submit(*line, master=master)
            two = time.monotonic() - began
            times[master] = one / two
            print(f"{size / 1e6:.0f} MB: one process {one:.1f} s, {master} {two:.1f} s: {one / two:.2f} ×", file=sys.stderr)
            self.assertEqual({name: self.removed(name) for name in want}, want)
        for master, times_faster in times.items():
            self.assertGreaterEqual(times_faster, 1.6, master)


if __name__ == "__main__":
    unittest.main()
