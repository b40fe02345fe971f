"""Writes a checkpoint as a model: python -m tools.train_nano.export --checkpoint FILE --out DIR

The folder is in Hugging Face's layout: `model.safetensors` (16-bit floats) and `config.json` from the checkpoint,
`generation_config.json` with the alignment heads that place words best, and the tokenizer's files, which are copied.
The heads are found by measuring: each head of the cross-attention alone places the words of some windows of the corpus,
whose times are known, and the best few are then tried together.
"""

import argparse
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from tokenizers import Tokenizer

from streamer.audio.constants import SAMPLE_RATE
from streamer.whisper.decode.timing import word_spans
from tools.train_nano.corpus import Corpus, Utterance
from tools.train_nano.network import Shape, Whisper
from tools.train_nano.spectrogram import LogMel
from tools.train_nano.windows import Script

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "preprocessor_config.json",
)
MEASURED = 60  # utterances that the heads are measured on
TRIED_TOGETHER = 6  # of the best heads: every set of them is measured

Head = tuple[int, int]  # layer and number


def load(checkpoint: Path) -> Whisper:
    """The network of a checkpoint that train.py wrote."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    net = Whisper(Shape(**state["shape"]))
    net.load_state_dict(state["net"])
    return net.eval()


def config(shape: Shape, script: Script) -> dict[str, Any]:
    """config.json: sizes, and the tokens that transformers wants to know."""
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "_name_or_path": "streamer/nano.en",
        "model_type": "whisper",
        "vocab_size": shape.vocabulary,
        "num_mel_bins": shape.mel_bins,
        "d_model": shape.d_model,
        "encoder_layers": shape.encoder_layers,
        "encoder_attention_heads": shape.heads,
        "encoder_ffn_dim": 4 * shape.d_model,
        "decoder_layers": shape.decoder_layers,
        "decoder_attention_heads": shape.heads,
        "decoder_ffn_dim": 4 * shape.d_model,
        "max_source_positions": shape.audio_positions,
        "max_target_positions": shape.text_positions,
        "activation_function": "gelu",
        "bos_token_id": script.end,
        "eos_token_id": script.end,
        "pad_token_id": script.end,
        "decoder_start_token_id": script.start,
        "is_encoder_decoder": True,
        "scale_embedding": False,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        "use_cache": True,
        "begin_suppress_tokens": [script.blank],
        "suppress_tokens": [],
    }


def generation_config(script: Script, heads: list[Head]) -> dict[str, Any]:
    """generation_config.json: how Whisper's decoding uses the vocabulary, and which heads tell the words' times."""
    return {
        "bos_token_id": script.end,
        "eos_token_id": script.end,
        "pad_token_id": script.end,
        "decoder_start_token_id": script.start,
        # Not its end, as OpenAI's have: it learnt to write nothing where nobody speaks.
        "begin_suppress_tokens": [script.blank],
        "suppress_tokens": sorted(script.never_written),
        "is_multilingual": True,
        "condition_on_prev_tokens": True,
        # Its short windows were filled up with silence, as a stream's are, and never with zeros.
        "pad_with_silence": True,
        "stream_windows_s": [5, 10],
        "stream_beams": 4,
        "lang_to_id": {"<|en|>": script.language},
        "task_to_id": {"transcribe": script.task, "translate": script.translate},
        "no_timestamps_token_id": script.no_timestamps,
        "prev_sot_token_id": script.previous,
        "max_initial_timestamp_index": 50,
        "max_length": 448,
        "return_timestamps": False,
        "alignment_heads": [list(head) for head in heads],
    }


def alignment_heads(net: Whisper, script: Script, utterances: list[Utterance]) -> tuple[list[Head], float]:
    """The set of heads that places the words' beginnings best, and its score in seconds, the lower the better.

    The score is the median error and a fifth of that which nine in ten words stay below.
    """
    log_mel = LogMel(net.shape.mel_bins)
    seen: list[tuple[np.ndarray[Any, np.dtype[np.float64]], list[int], Utterance]] = []
    with torch.no_grad():
        for utterance in utterances:
            audio = torch.zeros(1, 30 * SAMPLE_RATE)
            audio[0, : len(utterance.samples)] = torch.from_numpy(utterance.samples / 32768)
            features = net.encoder(log_mel(audio), torch.arange(1500)[None])
            words = [list(script.word(word)[0]) for word in utterance.text.split()]
            text = [token for word in words for token in word]
            tokens = torch.tensor([[script.start, script.language, script.task, script.no_timestamps, *text]])
            attention = torch.stack([weights[0] for weights in net.decoder(tokens, features)[1]])
            seen.append((attention.double().numpy(), [len(word) for word in words], utterance))

    def error(heads: tuple[Head, ...]) -> float:
        errors = []
        for attention, lengths, utterance in seen:
            weights = np.stack([attention[layer, number] for layer, number in heads])
            spans = word_spans(weights, 4, lengths, len(utterance.samples))
            pairs = zip(spans, utterance.words, strict=True)
            errors += [abs(begin / SAMPLE_RATE - start) for (begin, _), (start, _) in pairs]
        return float(np.median(errors)) + 0.2 * float(np.quantile(errors, 0.9))

    alone = sorted(
        itertools.product(range(net.shape.decoder_layers), range(net.shape.heads)), key=lambda h: error((h,))
    )
    best = alone[:TRIED_TOGETHER]
    sets = [heads for size in range(1, len(best) + 1) for heads in itertools.combinations(best, size)]
    chosen = min(sets, key=error)
    return sorted(chosen), error(chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a checkpoint as a model in Hugging Face's layout.")
    parser.add_argument("--checkpoint", type=Path, required=True, help="checkpoint.pt of train.py")
    parser.add_argument("--corpus", type=Path, required=True, help="speech to measure the alignment heads on")
    parser.add_argument("--tokenizer", type=Path, default=Path("models/nano.en"), help="the folder with its files")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    options = parser.parse_args()
    if not options.checkpoint.is_file():
        raise SystemExit(f"{options.checkpoint} is missing; train.py writes it")
    net = load(options.checkpoint)
    script = Script(Tokenizer.from_file(str(options.tokenizer / "tokenizer.json")))
    corpus = Corpus(options.corpus)
    corpus.refresh()
    voices = sorted(voice for voice, utterances in corpus.voices.items() if utterances)
    if not voices:
        raise SystemExit(f"there is no speech in {options.corpus}; synthesise.py makes it")
    share = -(-MEASURED // len(voices))
    heads, error = alignment_heads(net, script, [u for voice in voices for u in corpus.voices[voice][:share]])
    print(f"alignment heads {heads}: score {error:.3f} s")
    options.out.mkdir(parents=True, exist_ok=True)
    weights = {f"model.{name}": tensor.to(torch.float16).contiguous() for name, tensor in net.state_dict().items()}
    (options.out / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    for name, content in (
        ("config.json", config(net.shape, script)),
        ("generation_config.json", generation_config(script, heads)),
    ):
        (options.out / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    for name in TOKENIZER_FILES:
        if options.tokenizer.resolve() != options.out.resolve():
            shutil.copyfile(options.tokenizer / name, options.out / name)


if __name__ == "__main__":
    main()
