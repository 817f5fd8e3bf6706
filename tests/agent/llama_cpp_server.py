# mypy: ignore-errors
"""Serves a model of random weights with the real llama.cpp: `llama_cpp_server.py FOLDER PORT WINDOW`.

It talks nonsense; what is real is the server. Run by the environment that `test_llama_cpp` installs."""

import sys
import time
from pathlib import Path

import gguf
import numpy as np
import xllamacpp

TEMPLATE = """{%- if tools %}<|im_start|>system
Call a tool with <tool_call>{"name": ..., "arguments": ...}</tool_call>. The tools:
<tools>{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools><|im_end|>
{% endif %}{% for m in messages %}{% if m.role == "tool" %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content or "" }}{% for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""As Qwen and Hermes have it: the server then knows how its models call tools."""
WIDTH, LAYERS, HEADS, INNER = 64, 2, 4, 128


def make(path: Path, window: int) -> None:
    """Write the model: half a megabyte."""
    random = np.random.default_rng(7)
    file = gguf.GGUFWriter(path, "llama")
    file.add_context_length(window)
    file.add_embedding_length(WIDTH)
    file.add_block_count(LAYERS)
    file.add_feed_forward_length(INNER)
    file.add_head_count(HEADS)
    file.add_head_count_kv(HEADS)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_dimension_count(WIDTH // HEADS)
    kinds = gguf.TokenType
    tokens = [("<unk>", kinds.UNKNOWN), ("<s>", kinds.CONTROL), ("</s>", kinds.CONTROL)]
    tokens += [(f"<0x{byte:02X}>", kinds.BYTE) for byte in range(256)]
    tokens += [(chr(code), kinds.NORMAL) for code in range(33, 127)]
    tokens += [("<tool_call>\n", kinds.NORMAL)]  # in one piece chance finds it, and the grammar does the rest
    file.add_tokenizer_model("llama")
    file.add_token_list([text.encode() for text, _ in tokens])
    file.add_token_scores([0.0] * len(tokens))
    file.add_token_types([kind for _, kind in tokens])
    file.add_bos_token_id(1)
    file.add_eos_token_id(2)
    file.add_unk_token_id(0)
    file.add_add_space_prefix(False)
    file.add_chat_template(TEMPLATE)

    def tensor(name: str, *shape: int) -> None:
        plain = name.endswith("norm.weight")
        weights = np.ones(shape) if plain else random.standard_normal(shape) * 0.05
        file.add_tensor(name, weights.astype(np.float32))

    tensor("token_embd.weight", len(tokens), WIDTH)
    tensor("output_norm.weight", WIDTH)
    tensor("output.weight", len(tokens), WIDTH)
    for block in (f"blk.{number}." for number in range(LAYERS)):
        for name in ("attn_norm", "ffn_norm"):
            tensor(f"{block}{name}.weight", WIDTH)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"{block}{name}.weight", WIDTH, WIDTH)
        tensor(f"{block}ffn_gate.weight", INNER, WIDTH)
        tensor(f"{block}ffn_up.weight", INNER, WIDTH)
        tensor(f"{block}ffn_down.weight", WIDTH, INNER)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def serve(path: Path, port: int, window: int) -> None:
    """Serve it until somebody ends the process."""
    wanted = xllamacpp.CommonParams()
    wanted.model.path = str(path)
    wanted.n_ctx, wanted.n_parallel, wanted.port = window, 1, port
    wanted.hostnames = ["127.0.0.1"]
    wanted.warmup, wanted.use_jinja = False, True
    wanted.cpuparams.n_threads = 1
    server = xllamacpp.Server(wanted)
    print("ready", server.listening_address, flush=True)
    time.sleep(600)


if __name__ == "__main__":
    model = Path(sys.argv[1]) / "tiny.gguf"
    make(model, int(sys.argv[3]))
    serve(model, int(sys.argv[2]), int(sys.argv[3]))
