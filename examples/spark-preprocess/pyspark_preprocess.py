"""Tokenizes JSON lines with Spark and writes Megatron's indexed data sets, in the order of the input.

Each part of the corpus becomes files of its own. A part that is finished is not done again, neither when an executor is
lost nor when the whole job is started a second time. At the end the parts are joined. README.md has the whole line."""
import argparse
import fcntl
import functools
import hashlib
import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import corpus
import indexed
import onepart
import vocabulary

AT_ONCE = 512  # parts that Spark is asked for at once


class PreprocessError(Exception):
    """The job cannot go on. status is the exit status: 2 where nothing was started."""

    def __init__(self, text, status=1):
        super().__init__(text)
        self.status = status


def say(text):
    print(f"preprocess: {text}", file=sys.stderr, flush=True)


def command_line():
    p = argparse.ArgumentParser(prog="pyspark_preprocess.py", description=__doc__.partition("\n")[0])
    p.add_argument("--input", required=True, help="files of JSON lines, with commas; those that end in .zst or .gz are read too")
    p.add_argument("--jsonl-keys", nargs="+", default=["text"], help="fields of a line; each gets a data set of its own")
    p.add_argument("--num-docs", type=int, help="how many documents there are, for the progress")
    p.add_argument("--tokenizer-type", required=True, choices=vocabulary.NAMES)
    p.add_argument("--vocab-file", help="the vocabulary; for HFTokenizer a tokenizer.json")
    p.add_argument("--merge-file", help="the merges of GPT2BPETokenizer")
    p.add_argument("--append-eod", action="store_true", help="put the token for the end of a document behind each one")
    p.add_argument("--eod-token", help="the name of that token; default: " + ", ".join(vocabulary.END_TOKENS))
    p.add_argument("--ftfy", action="store_true", help="mend the text with ftfy first")
    p.add_argument("--output-prefix", required=True, help="the files are PREFIX_KEY_document.bin and .idx")
    p.add_argument("--dataset-impl", default="mmap", choices=["mmap", "lazy", "cached"], help="only mmap, which Megatron reads, is written")
    p.add_argument("--workers", type=int, default=1, help="the least number of parts (1)")
    p.add_argument("--log-interval", type=int, default=100, help="documents between two lines of progress (100)")
    p.add_argument("--part-bytes", type=int, default=64 << 20, help="the largest part of an uncompressed file (64 MiB)")
    p.add_argument("--max-line-bytes", type=int, default=64 << 20, help="longer lines are left out (64 MiB)")
    p.add_argument("--fatal", nargs="+", default=[], choices=corpus.KINDS + ("all",), metavar="KIND",
                   help="end with status 1 at such a line, instead of leaving it out: all, or some of " + ", ".join(corpus.KINDS))
    p.add_argument("--without-spark", action="store_true", help="do all parts in this process, one after the other")
    args = p.parse_args()
    if args.dataset_impl != "mmap":
        p.error(f"--dataset-impl {args.dataset_impl} is not written: Megatron reads mmap alone")
    for name in "workers", "log_interval", "part_bytes", "max_line_bytes":
        if getattr(args, name) < 1:
            p.error(f"--{name.replace('_', '-')} has to be at least 1")
    for key in args.jsonl_keys:
        if not key or "/" in key or "\0" in key:
            p.error(f"--jsonl-keys: {key!r} cannot be part of a file's name")
    if len(set(args.jsonl_keys)) < len(args.jsonl_keys):
        p.error("--jsonl-keys names a field twice")
    return args


def _digest(path):
    if not path or not os.path.isfile(path):
        return path
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def inputs(args):
    paths = [os.path.abspath(p) for p in args.input.split(",") if p]
    if "://" in args.input:
        raise PreprocessError("--input: the files have to lie where this machine and all executors see them, such as on NFS", 2)
    for path in paths:
        if not os.path.isfile(path):
            raise PreprocessError(f"--input: there is no file {path}", 2)
    if not paths or len(set(paths)) < len(paths):
        raise PreprocessError("--input names no file, or one of them twice", 2)
    return paths


def options_of(args):
    """What the executors need to know."""
    options = {name: getattr(args, name) for name in ("tokenizer_type", "eod_token", "append_eod", "ftfy", "max_line_bytes")}
    for name in "vocab_file", "merge_file":
        path = getattr(args, name)
        options[name] = os.path.abspath(path) if path and os.path.exists(path) else path
    return dict(options, keys=args.jsonl_keys, fatal=sorted(corpus.KINDS if "all" in args.fatal else args.fatal))


def plan(args, options, folder):
    """Returns the parts: those of the run before, if it was about the same, or new ones."""
    paths, at = inputs(args), os.path.join(folder, "plan.json")
    about = {k: v for k, v in options.items() if k != "fatal"}
    about |= {"vocab_file": _digest(options["vocab_file"]), "merge_file": _digest(options["merge_file"])}
    about["input"] = [[p, os.path.getsize(p), os.stat(p).st_mtime_ns] for p in paths]
    if os.path.exists(at):
        with open(at) as file:
            old = json.load(file)
        if differs := [name for name in about if about[name] != old["about"].get(name)]:
            raise PreprocessError(f"{folder} has parts of another run: {', '.join(differs)} differ. Remove that folder, or choose another "
                                  "--output-prefix", 2)
        return old["parts"]
    parts = corpus.divide(paths, args.workers, args.part_bytes)
    onepart.write_json(at, {"about": about, "parts": parts})
    return parts


class Progress:
    def __init__(self, args, parts):
        self.args, self.parts, self.done, self.documents, self.said = args, parts, 0, 0, 0
        self.since = time.monotonic()

    def add(self, record, was_there=False):
        self.done += 1
        self.documents += record["documents"]
        if was_there or self.documents - self.said < self.args.log_interval and self.done < self.parts:
            return
        self.said = self.documents
        of = f" of {self.args.num_docs}" if self.args.num_docs else ""
        say(f"{self.documents}{of} documents, {self.done} of {self.parts} parts, {time.monotonic() - self.since:.0f} s")


def by_spark(parts, folder, options, heard):
    """Does the parts on the executors, and calls heard with the record of each as soon as it has ended."""
    try:
        from pyspark import SparkConf, SparkContext
    except ImportError as err:
        raise PreprocessError(f"cannot import PySpark: {err}. Start this by spark-submit, or give --without-spark", 2) from err
    sc = SparkContext(conf=SparkConf().setAppName("preprocess"))
    pool = ThreadPoolExecutor(min(len(parts), AT_ONCE))
    try:
        for module in corpus, indexed, onepart, vocabulary:
            sc.addPyFile(module.__file__)
        job = sc.parallelize(parts, len(parts)).map(functools.partial(onepart.tokenize, folder=folder, options=options))
        # One job of Spark for each part: its own iterators give the first part first, however long that one takes.
        for done in as_completed([pool.submit(sc.runJob, job, list, [number]) for number in range(len(parts))]):
            heard(done.result()[0])
    except Exception as err:
        if type(err).__name__ != "Py4JJavaError":
            raise
        raise PreprocessError(f"Spark could not do a part: {str(err.java_exception.getMessage())[:2000]}") from err
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        sc.cancelAllJobs()
        sc.stop()


def named_lines(parts, records):
    """Yields the lines that were left out: file, number of the line in it, kind and why."""
    before, path = 0, None
    for part, record in zip(parts, records):
        if part["path"] != path:
            before, path = 0, part["path"]
        for number, kind, why in record["named"]:
            yield path, before + number, kind, why
        before += record["lines"]


def report(parts, records):
    lines, bad = sum(r["lines"] for r in records), {k: sum(r["bad"][k] for r in records) for k in corpus.KINDS}
    total = sum(bad.values())
    if total:
        say(f"{total} of {lines} lines are left out: " + ", ".join(f"{n} {kind}" for kind, n in bad.items() if n))
        for shown, (path, number, kind, why) in enumerate(named_lines(parts, records)):
            if shown == onepart.NAMED:
                say(f"  and {total - shown} more")
                break
            say(f"  {path}:{number}: {kind}: {why}")


def preprocess(args):
    prefix, options = os.path.abspath(args.output_prefix), options_of(args)
    outputs = [f"{prefix}_{key}_document" for key in args.jsonl_keys]
    for path in (o + end for o in outputs for end in (".bin", ".idx")):
        if os.path.exists(path):
            raise PreprocessError(f"{path} exists, and is not overwritten: remove it, or choose another --output-prefix", 2)
    inputs(args)
    if args.ftfy:
        try:
            import ftfy  # noqa: F401  (whether it is there)
        except ImportError as err:
            raise PreprocessError("--ftfy needs the Python package ftfy: pip install ftfy", 2) from err
    if any(p.endswith(".zst") for p in args.input.split(",")):
        try:
            import zstandard  # noqa: F401
        except ImportError as err:
            raise PreprocessError("files that end in .zst need the Python package zstandard: pip install zstandard", 2) from err
    dtype = indexed.token_type(onepart.tokenizer_of(json.dumps(options)).size)
    folder = prefix + "_parts"
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise PreprocessError(f"another process writes {prefix}: wait for it, or choose another --output-prefix", 2) from err
        parts = plan(args, options, folder)
        records, progress = {}, Progress(args, len(parts))
        for part in parts:
            record = onepart.finished(folder, part["number"])
            if record and not onepart.fatal_in(record, options):
                records[part["number"]] = record
                progress.add(record, was_there=True)
        if records:
            say(f"{len(records)} of {len(parts)} parts are there already")
        todo = [p for p in parts if p["number"] not in records]

        def heard(record):
            if "error" in record:
                raise PreprocessError(f"{record['error']}; the parts that are finished are kept")
            if onepart.fatal_in(record, options):
                number, kind, why = next(n for n in record["named"] if n[1] in options["fatal"])
                part = parts[record["number"]]
                raise PreprocessError(f"{part['path']}: line {number} behind byte {part['start']}: {kind}: {why}. --fatal {kind} ends the "
                                      "job; the parts that are finished are kept")
            records[record["number"]] = record
            progress.add(record)

        if args.without_spark:
            for part in todo:
                heard(onepart.tokenize(part, folder, options))
        elif todo:
            by_spark(todo, folder, options, heard)
        records = [records[p["number"]] for p in parts]
        report(parts, records)
        documents = sum(r["documents"] for r in records)
        if not documents:
            raise PreprocessError(f"{args.input} has no document with {' and '.join(map(repr, args.jsonl_keys))}")
        for i, output in enumerate(outputs):
            indexed.join([os.path.join(folder, r["names"][i]) for r in records], documents, dtype, output)
            say(f"{output}.bin: {documents} documents, {sum(r['tokens'][i] for r in records)} tokens")
        shutil.rmtree(folder)


if __name__ == "__main__":
    try:
        preprocess(command_line())
    except (PreprocessError, corpus.CorpusError, vocabulary.VocabularyError) as err:
        say(f"error: {err}")
        sys.exit(getattr(err, "status", 2 if isinstance(err, vocabulary.VocabularyError) else 1))
