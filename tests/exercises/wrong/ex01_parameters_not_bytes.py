# ruff: noqa
"""Returns the number of parameters."""


def my_ledger(model, *, gpu_bytes, fraction, other_bytes, block_size, max_model_len):
    matrix = model.vocab_size * model.hidden_size
    query = model.hidden_size * model.num_heads * model.head_dim
    key = model.hidden_size * model.num_kv_heads * model.head_dim
    mlp = 3 * model.hidden_size * model.intermediate_size
    layer = 2 * query + 2 * key + mlp + 2 * model.hidden_size
    params = matrix * (1 if model.tied else 2) + model.num_layers * layer + model.hidden_size
    weight_bytes = params
    kv = 2 * model.num_layers * model.num_kv_heads * model.head_dim * model.bytes_per_value
    left = int(gpu_bytes * fraction) - weight_bytes - other_bytes
    num_blocks = left // (block_size * kv)
    per_sequence = -(-max_model_len // block_size)
    return {
        "weight_bytes": weight_bytes,
        "kv_bytes_per_token": kv,
        "num_blocks": num_blocks,
        "num_full_sequences": num_blocks // per_sequence,
    }


EXPECT = "number of parameters"  # the message must contain this
