"""Tokenizes one part of a corpus into files of its own. This runs on Spark's executors."""
import functools
import json
import os
import uuid

import corpus
import indexed
import vocabulary

BATCH = 512  # documents that the tokenizer gets at once
HELD = 8 << 20  # bytes of lines, after which it gets fewer
NAMED = 20  # lines that are left out and named


def write_json(path, value):
    mark = f"{path}.{uuid.uuid4().hex}.tmp"
    with open(mark, "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(mark, path)


def record_of(folder, number):
    return os.path.join(folder, f"{number:06d}.json")


def finished(folder, number):
    """Returns the record of a part that is finished and whose files are whole, or None."""
    try:
        with open(record_of(folder, number)) as file:
            record = json.load(file)
        whole = all(os.path.getsize(os.path.join(folder, name)) == size for name, size in record["files"].items())
    except FileNotFoundError:
        return None
    return record if whole else None


@functools.lru_cache(1)
def tokenizer_of(options):
    return vocabulary.make(json.loads(options))


def tokenize(part, folder, options):
    """Tokenizes one part and returns its record, or one with an error that a second attempt would not mend. Two processes
    may do the same part at once: each has files of its own, and the one that is ready last wins, with the same content."""
    if (record := finished(folder, part["number"])) and not fatal_in(record, options):
        return record
    try:
        return _tokenize(part, folder, options)
    except corpus.CorpusError as err:
        return {"error": str(err)}


def _tokenize(part, folder, options):
    tokenizer, keys, most = tokenizer_of(json.dumps(options)), options["keys"], options["max_line_bytes"]
    if options["ftfy"]:
        from ftfy import fix_text
    attempt = uuid.uuid4().hex
    names = [os.path.join(folder, f"{part['number']:06d}.{attempt}.{i}") for i in range(len(keys))]
    outputs = [indexed.Part(name, indexed.token_type(tokenizer.size)) for name in names]
    end = [tokenizer.end] if options["append_eod"] else []
    bad, named, count = dict.fromkeys(corpus.KINDS, 0), [], 0

    def leave_out(number, kind, why):
        bad[kind] += 1
        if len(named) < NAMED or kind in options["fatal"]:
            named.append([number, kind, why])

    def write(batch):
        encoded = [tokenizer.encode([texts[i] for _, texts in batch]) for i in range(len(keys))]
        keep = []
        for at, (number, _) in enumerate(batch):
            if empty := [k for k, tokens in zip(keys, encoded) if not tokens[at]]:
                leave_out(number, corpus.NO_TOKENS, f"field {empty[0]!r} has no token")
            else:
                keep.append(at)
        for output, documents in zip(outputs, encoded):
            output.add([documents[at] + end for at in keep])

    batch, held = [], 0
    for count, line in enumerate(corpus.lines(part, most), 1):
        texts, why = corpus.texts(line, keys, most)
        if why:
            leave_out(count, *why)
            if why[0] in options["fatal"]:
                break
            continue
        batch.append((count, [fix_text(t) for t in texts] if options["ftfy"] else texts))
        held += len(line)
        if len(batch) == BATCH or held > HELD:
            write(batch)
            batch, held = [], 0
    write(batch)
    for output in outputs:
        output.close()
    files = {os.path.basename(n) + e: os.path.getsize(n + e) for n in names for e in (".bin", ".sizes")}
    record = {"number": part["number"], "lines": count, "documents": outputs[0].documents, "tokens": [o.tokens for o in outputs],
              "bad": bad, "named": sorted(named), "names": [os.path.basename(n) for n in names], "files": files}
    if not fatal_in(record, options):
        write_json(record_of(folder, part["number"]), record)
    return record


def fatal_in(record, options):
    return any(record["bad"][kind] for kind in options["fatal"])
