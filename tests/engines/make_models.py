"""Makes tiny models offline: ``python make_models.py FOLDER``, with the Python of an engine's environment.

A byte-level tokenizer of 4,096 tokens is trained on the standard library's own sources, and models get random weights.
The output rows of the special tokens and of bytes outside ASCII are zero: greedy decoding then neither ends early nor
makes half a character, which some engines would hold back.

    llama-tiny   2 layers, 3 M parameters      llama-small   8 layers, 29 M parameters
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 4096
N_SOURCES = 80
SPECIAL = ["<|bos|>", "<|eos|>", "<|pad|>"]
SPACE_AND_NEWLINE = "\u0120\u010a"
"""As a byte-level vocabulary writes them; every other character above 126 stands for a byte outside ASCII."""
SHAPES = {
    "llama-tiny": {"hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 512, "num_attention_heads": 4},
    "llama-small": {"hidden_size": 512, "num_hidden_layers": 8, "intermediate_size": 1536, "num_attention_heads": 8},
}


def main(folder: Path) -> None:
    """Makes what is missing."""
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    for name, shape in SHAPES.items():
        model = make_model(tokenizer, shape)
        if not (folder / name / "config.json").exists():
            tokenizer.save_pretrained(folder / name)
            model.save_pretrained(folder / name)  # config.json is part of it, so it comes last


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE, trained on Python sources."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:N_SOURCES]
    trained.train([str(path) for path in sources], trainer)
    bos, eos, pad = SPECIAL
    found = PreTrainedTokenizerFast(
        tokenizer_object=trained,
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
    )
    found.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    return found


def make_model(tokenizer: PreTrainedTokenizerFast, shape: dict[str, int]) -> LlamaForCausalLM:
    """A Llama with random weights that never writes a special token or a byte outside ASCII."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        num_key_value_heads=shape["num_attention_heads"] // 2,
        head_dim=64,
        max_position_embeddings=8192,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
        **shape,
    )
    model = LlamaForCausalLM(config)
    model.lm_head.weight.data[_never_written(tokenizer)] = 0
    model.generation_config.bos_token_id, model.generation_config.eos_token_id = 0, 1
    return model.to(torch.bfloat16)


def _never_written(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    return [
        i
        for text, i in tokenizer.get_vocab().items()
        if i < len(SPECIAL) or any(ord(letter) > 126 and letter not in SPACE_AND_NEWLINE for letter in text)
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
