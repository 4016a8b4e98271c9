"""Writes a corpus to try: the documentation of Python's own modules as JSON lines, in/sample.jsonl, with three lines
that are wrong, and a tokenizer for it, tokenizer.json."""
import ast
import json
import os
import sysconfig

from tokenizers.implementations import ByteLevelBPETokenizer


def texts():
    folder = sysconfig.get_path("stdlib")
    for name in sorted(os.listdir(folder)):
        if name.endswith(".py"):
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                tree = ast.parse(file.read())
            for node in ast.walk(tree):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
                    yield text


documents = list(texts())
lines = [json.dumps({"text": text}) for text in documents]
lines[10:10] = ['{"text": "no end', "", '{"title": "a line without text"}']
os.makedirs("in", exist_ok=True)
with open("in/sample.jsonl", "w") as file:
    file.writelines(line + "\n" for line in lines)
tokenizer = ByteLevelBPETokenizer()
tokenizer.train_from_iterator(documents, vocab_size=2000, special_tokens=["<|endoftext|>"], show_progress=False)
tokenizer.save("tokenizer.json")
print(f"{len(lines)} lines")
