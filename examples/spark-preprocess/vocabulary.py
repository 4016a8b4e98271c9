"""Tokenizers by the names that Megatron and GPT-NeoX use. None of them asks the network, and none adds tokens of its
own, such as one for the beginning of a text."""
import importlib.util
import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there are as many processes as Spark has cores

END_TOKENS = "<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>"


class VocabularyError(Exception):
    """The tokenizer cannot be made."""


class Tokenizer:
    """size: of the vocabulary. end: the token behind a document, or None. encode: texts to lists of tokens."""

    def __init__(self, size, end, encode):
        self.size, self.end, self.encode = size, end, encode


def _hugging_face(tokenizer, end_token):
    tokenizer.no_truncation()  # a tokenizer.json may ask for both
    tokenizer.no_padding()
    ends = [tokenizer.token_to_id(t) for t in ([end_token] if end_token else END_TOKENS)]
    return Tokenizer(tokenizer.get_vocab_size(), next((e for e in ends if e is not None), None),
                     lambda texts: [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)])


def _hf(options):
    from tokenizers import Tokenizer as Fast
    return _hugging_face(Fast.from_file(_file(options, "vocab_file")), options["eod_token"])


def _gpt2(options):
    from tokenizers.implementations import ByteLevelBPETokenizer
    fast = ByteLevelBPETokenizer(_file(options, "vocab_file"), _file(options, "merge_file"))
    return _hugging_face(fast._tokenizer, options["eod_token"])


def _hf_gpt2(options):
    folder = options["vocab_file"]
    if not folder or not os.path.isdir(folder):
        raise VocabularyError("HFGPT2Tokenizer needs --vocab-file FOLDER, one with vocab.json and merges.txt; nothing is downloaded")
    return _gpt2(dict(options, vocab_file=os.path.join(folder, "vocab.json"), merge_file=os.path.join(folder, "merges.txt")))


def _characters(options):
    if options["eod_token"]:
        raise VocabularyError("CharLevelTokenizer has no token by a name: its end of a document is 0")
    return Tokenizer(512, 0, lambda texts: [list(t.encode()) for t in texts])


def _tiktoken(options):
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe
    ranks = load_tiktoken_bpe(_file(options, "vocab_file"))
    end = options["eod_token"] or END_TOKENS[0]
    pattern = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
    encoding = tiktoken.Encoding("file", pat_str=pattern, mergeable_ranks=ranks, special_tokens={end: max(ranks.values()) + 1})
    return Tokenizer(encoding.n_vocab, encoding.eot_token if end == END_TOKENS[0] else encoding.n_vocab - 1,
                     lambda texts: [encoding.encode_ordinary(t) for t in texts])


_KINDS = {"HFTokenizer": (_hf, "tokenizers"), "GPT2BPETokenizer": (_gpt2, "tokenizers"), "HFGPT2Tokenizer": (_hf_gpt2, "tokenizers"),
          "CharLevelTokenizer": (_characters, None), "TiktokenTokenizer": (_tiktoken, "tiktoken")}
NAMES = tuple(_KINDS)


def _file(options, name):
    path = options[name]
    if not path:
        raise VocabularyError(f"{options['tokenizer_type']} needs --{name.replace('_', '-')} FILE")
    if not os.path.isfile(path):
        raise VocabularyError(f"--{name.replace('_', '-')}: there is no file {path}")
    return path


def make(options):
    """Returns the tokenizer of the options tokenizer_type, vocab_file, merge_file, eod_token and append_eod."""
    kind = options["tokenizer_type"]
    function, module = _KINDS[kind]
    if module and importlib.util.find_spec(module) is None:
        raise VocabularyError(f"{kind} needs the Python package {module}: pip install {module}")
    try:
        made = function(options)
    except VocabularyError:
        raise
    except Exception as err:  # tokenizers raises Exception itself
        raise VocabularyError(f"cannot read the vocabulary of {kind}: {err}") from err
    if options["append_eod"] and made.end is None:
        wanted = [options["eod_token"]] if options["eod_token"] else END_TOKENS
        raise VocabularyError(f"--append-eod: the vocabulary has no {' or '.join(wanted)}; name its token with --eod-token")
    return made
