"""Run by the lab's Python, which has transformers: ``tokenizer_maker.py`` with a JSON object on standard input.

``make``: [folder, kind, template] of tokenizers that AutoTokenizer loads: ``fast`` has a token for each character and
one for ``ww``; ``own`` is Python code beside it, as Kimi's. ``cases``: [folder, value] of conversations, for the
functions of ``hsops.payload.tokenise``. ``loads``: what its ``load`` is to be given. Prints what became of both.
"""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "hsops/payload/tokenise.py"
OWN = """
from transformers import PreTrainedTokenizer


class Characters(PreTrainedTokenizer):
    vocab_files_names = {}

    def __init__(self, **options):
        print("own code runs and prints")
        super().__init__(**options)

    @property
    def vocab_size(self):
        return 256

    def get_vocab(self):
        return {**{chr(i): i for i in range(256)}, **self.added_tokens_encoder}

    def _tokenize(self, text, **options):
        return list(text)

    def _convert_token_to_id(self, token):
        return ord(token)

    def _convert_id_to_token(self, index):
        return chr(index)

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens)

    def save_vocabulary(self, folder, filename_prefix=None):
        return ()
"""


def make(folder: str, kind: str, template: str) -> None:
    Path(folder).mkdir(parents=True)
    if kind == "own":
        own(Path(folder), template)
        return
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<s>", *(chr(i) for i in range(256)), "ww"]
    made = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [("w", "w")], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("w+|[^w]"), "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens([AddedToken(f"<|im_{word}|>", special=True) for word in ("start", "end")])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="<|im_end|>")
    fast.chat_template = template or None
    fast.save_pretrained(folder)


def own(folder: Path, template: str) -> None:
    (folder / "characters.py").write_text(OWN)
    config = {
        "tokenizer_class": "Characters",
        "auto_map": {"AutoTokenizer": ["characters.Characters", None]},
        "chat_template": template,
        "eos_token": "<|im_end|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def case(module, folder, value):
    wanted = {"path": folder, "mode": "auto", "trust": True, "revision": "", "template": ""}
    tokenizer = module.load(wanted)
    found = module.answer(tokenizer, "chat", value)
    if "ids" in found:
        pairs = list(zip(found["ids"], found["mask"], strict=True))
        found["whole"] = tokenizer.decode(found["ids"])
        found["marked"] = tokenizer.decode([id_ for id_, bit in pairs if bit == "1"])
    return found


def load(module, wanted):
    try:
        return type(module.load(wanted)).__name__
    except Exception as error:
        return module.said(error)


def main() -> None:
    asked = json.load(sys.stdin)
    spec = spec_from_file_location("tokenise", SOURCE)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    for one in asked.get("make", ()):
        make(*one)
    cases = [case(module, *one) for one in asked.get("cases", ())]
    loads = [load(module, one) for one in asked.get("loads", ())]
    print(json.dumps({"cases": cases, "loads": loads}))


if __name__ == "__main__":
    main()
