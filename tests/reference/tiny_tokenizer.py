"""The two tokenizers of the tiny checkpoint.

The AR tokenizer has the published structure: vision ids first, then a GLM-4 style byte-level BPE, specials last.
"""

import json
from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tiny_config import (
    IMAGE_END_ID,
    IMAGE_START_ID,
    OTHER_ADDED_TOKENS,
    SPECIAL_TOKENS,
    VISION_VOCAB_SIZE,
    dit_token,
)

# GLM-4's word pattern.
WORD_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = (
    "a red circle above a blue square on a white background",
    "a poster of a green fox in the morning rain, with the words and a title",
    "the quiet harbour at night, an old lighthouse and the sea",
    "a photo of the cat on the table with a yellow cup",
)
LEARNED_TOKENS = 64
# Words that no merge builds: only `ignore_merges` finds them, so a port that drops the flag fails the goldens.
UNMERGEABLE_WORDS = ("Ġlighthouse", "Ġposter", "Ġtriangle")
EXTRA_IDS = 125


def _words() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _learn_bpe() -> tuple[list[str], list[tuple[str, str]]]:
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = _words()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    learner.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=len(alphabet) + LEARNED_TOKENS, initial_alphabet=alphabet, show_progress=False
        ),
    )
    vocab = learner.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    # Every learned token is one merge of two earlier ones; the trainer keeps them only inside its JSON.
    merges = [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
    return tokens, merges


def ar_tokenizer(words: Sequence[str] = UNMERGEABLE_WORDS) -> Tokenizer:
    """`words` (byte-level spelling) become one token each through `ignore_merges`."""
    learned, merges = _learn_bpe()
    tokens = [dit_token(i) for i in range(VISION_VOCAB_SIZE)] + learned
    tokens += [word for word in words if word not in learned]
    tokenizer = Tokenizer(
        models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges, ignore_merges=True)
    )
    tokenizer.pre_tokenizer = _words()
    tokenizer.decoder = decoders.ByteLevel()
    # The vision ids are NOT added tokens, as in the published files. The ones a prompt needs become so only when a
    # loader adds the tokens that tokenizer_config.json names (bos, eos, pad, image, grid).
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in OTHER_ADDED_TOKENS])
    return tokenizer


def _added_token(content: str, special: bool) -> dict:
    return {
        "content": content,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": special,
    }


def ar_tokenizer_config(vocab: dict[str, int]) -> dict:
    """The keys of the published file, no more: transformers finds image_token and grid_*_token on its own."""
    added = {token: True for token in SPECIAL_TOKENS} | {token: False for token in OTHER_ADDED_TOKENS}
    return {
        "added_tokens_decoder": {str(vocab[t]): _added_token(t, special) for t, special in added.items()},
        "additional_special_tokens": list(SPECIAL_TOKENS),
        "clean_up_tokenization_spaces": False,
        "do_lower_case": False,
        "eos_token": dit_token(IMAGE_END_ID),
        "bos_token": dit_token(IMAGE_START_ID),
        "pad_token": dit_token(IMAGE_END_ID),
        "image_token": "<|image|>",
        "grid_bos_token": "<sop>",
        "grid_eos_token": "<eop>",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 65536,
        "padding_side": "left",
        "remove_space": False,
        "tokenizer_class": "PreTrainedTokenizer",
    }


def _byt5_token(content: str) -> dict:
    # `<pad>`, `</s>` and `<unk>` eat the blanks around them; the extra ids do not.
    return _added_token(content, special=False) | {"lstrip": True, "normalized": True, "rstrip": True}


def byt5_files() -> dict[str, dict]:
    """ByT5 has no vocabulary file; these three are what the published `tokenizer/` holds."""
    extra = [f"<extra_id_{i}>" for i in range(EXTRA_IDS)]
    named = {"0": "<pad>", "1": "</s>", "2": "<unk>"}
    decoder = {id_: _byt5_token(content) for id_, content in named.items()}
    decoder |= {str(259 + i): _added_token(content, special=True) for i, content in enumerate(extra)}
    names = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return {
        "added_tokens.json": {content: 259 + i for i, content in enumerate(extra)},
        "special_tokens_map.json": {"additional_special_tokens": extra} | names,
        "tokenizer_config.json": {
            "added_tokens_decoder": decoder,
            "additional_special_tokens": extra,
            "clean_up_tokenization_spaces": False,
            "extra_ids": 0,
            "model_max_length": 1000000000000000019884624838656,
            "tokenizer_class": "ByT5Tokenizer",
        }
        | names,
    }
