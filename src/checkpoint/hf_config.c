/* hf_config.c - see hf_config.h. */
#include "checkpoint/hf_config.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic_file.h"

/* Token <|endoftext|> of GPT-2's vocabulary, which readers assume where nothing is said. */
enum { GPT2_END_OF_TEXT = 50256 };

static json_t *gpt2_json(const rrfp_model_config *m)
{
    double dropout = (double)m->dropout;
    json_t *end = m->vocab > GPT2_END_OF_TEXT ? json_integer(GPT2_END_OF_TEXT) : json_null();
    return json_pack("{s:[s],s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:b,s:s,"
                     "s:O,s:o}",
                     "architectures", "GPT2LMHeadModel", "model_type", "gpt2",
                     "activation_function", "gelu_new", "n_layer", (json_int_t)m->num_layers,
                     "n_head", (json_int_t)m->heads, "n_embd", (json_int_t)m->hidden, "n_inner",
                     (json_int_t)m->ffn_hidden, "n_positions", (json_int_t)m->max_positions,
                     "n_ctx", (json_int_t)m->max_positions, "vocab_size", (json_int_t)m->vocab,
                     "layer_norm_epsilon", (double)m->norm_eps, "initializer_range", 0.02,
                     "attn_pdrop", dropout, "embd_pdrop", dropout, "resid_pdrop", dropout,
                     "tie_word_embeddings", m->tied, "torch_dtype", "float32", "bos_token_id",
                     end, "eos_token_id", end);
}

static json_t *llama_json(const rrfp_model_config *m)
{
    return json_pack(
        "{s:[s],s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:b,s:b,s:b,s:f,s:s,s:n}",
        "architectures", "LlamaForCausalLM", "model_type", "llama", "hidden_act", "silu",
        "hidden_size", (json_int_t)m->hidden, "intermediate_size", (json_int_t)m->ffn_hidden,
        "num_hidden_layers", (json_int_t)m->num_layers, "num_attention_heads",
        (json_int_t)m->heads, "num_key_value_heads", (json_int_t)m->kv_heads,
        "max_position_embeddings", (json_int_t)m->max_positions, "vocab_size",
        (json_int_t)m->vocab, "rms_norm_eps", (double)m->norm_eps, "rope_theta",
        (double)m->rope_theta, "tie_word_embeddings", m->tied, "attention_bias", 0, "mlp_bias", 0,
        "initializer_range", 0.02, "torch_dtype", "float32", "rope_scaling");
}

rrfp_status rrfp_hf_config_write(const char *path, const rrfp_model_config *model,
                                 rrfp_error *error)
{
    json_t *root = model->arch == RRFP_ARCH_LLAMA ? llama_json(model) : gpt2_json(model);
    char *text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(root);
    if (text == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for %s", path);
    }
    rrfp_status status = rrfp_atomic_file_write(path, text, strlen(text), error);
    free(text);
    return status;
}

typedef struct reader {
    const char *path;
    const json_t *root;
    rrfp_error *error;
    rrfp_status status; /* the first problem */
} reader;

static void refuse(reader *r, const char *key, const char *problem)
{
    if (r->status == RRFP_OK) {
        r->status = rrfp_error_set(r->error, RRFP_ERR_UNSUPPORTED, "%s: %s %s", r->path, key,
                                   problem);
    }
}

/* A whole number; 0 stands for a missing or null key when `optional`. */
static uint32_t whole(reader *r, const char *key, bool optional)
{
    const json_t *value = json_object_get(r->root, key);
    if (optional && (value == NULL || json_is_null(value))) {
        return 0;
    }
    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > INT32_MAX) {
        refuse(r, key, "must be a whole number from 1 to 2147483647");
        return 0;
    }
    return (uint32_t)json_integer_value(value);
}

static float number_of(reader *r, const json_t *object, const char *key, double standard)
{
    const json_t *value = json_object_get(object, key);
    double read = value == NULL || json_is_null(value) ? standard : json_number_value(value);
    if ((value != NULL && !json_is_null(value) && !json_is_number(value)) || !(read > 0.0) ||
        read > 1e12) {
        refuse(r, key, "must be a positive number");
        return 1.0f;
    }
    return (float)read;
}

static float number(reader *r, const char *key, double standard)
{
    return number_of(r, r->root, key, standard);
}

static bool flag(reader *r, const char *key, bool standard)
{
    const json_t *value = json_object_get(r->root, key);
    if (value == NULL || json_is_null(value)) {
        return standard;
    }
    if (!json_is_boolean(value)) {
        refuse(r, key, "must be true or false");
    }
    return json_is_true(value);
}

static void must_be(reader *r, const char *key, const char *wanted)
{
    const json_t *value = json_object_get(r->root, key);
    if (value != NULL && (!json_is_string(value) || strcmp(json_string_value(value), wanted) != 0)) {
        char problem[96];
        snprintf(problem, sizeof problem, "is not \"%s\", the only one supported", wanted);
        refuse(r, key, problem);
    }
}

static void must_be_off(reader *r, const char *key)
{
    const json_t *value = json_object_get(r->root, key);
    if (value != NULL && !json_is_null(value) && !json_is_false(value)) {
        refuse(r, key, "is set, which is not supported");
    }
}

/* Rotary positions: "rope_theta" and "rope_scaling", or, from version 5 of transformers on, both in
 * "rope_parameters". */
static float rope_theta(reader *r)
{
    static const char *const objects[] = {"rope_parameters", "rope_scaling"};
    float theta = number(r, "rope_theta", 10000.0);
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        const json_t *rope = json_object_get(r->root, objects[i]);
        if (rope == NULL || json_is_null(rope)) {
            continue;
        }
        const char *type = json_string_value(json_object_get(rope, "rope_type"));
        if (type == NULL) {
            type = json_string_value(json_object_get(rope, "type"));
        }
        if (type == NULL || strcmp(type, "default") != 0) {
            refuse(r, objects[i], "has a rope_type other than \"default\", the only one supported");
        }
        if (number_of(r, rope, "partial_rotary_factor", 1.0) != 1.0f) {
            refuse(r, objects[i], "has a partial_rotary_factor other than 1, not supported");
        }
        theta = number_of(r, rope, "rope_theta", (double)theta);
    }
    return theta;
}

static void read_gpt2(reader *r, rrfp_model_config *m)
{
    m->arch = RRFP_ARCH_GPT2;
    must_be(r, "activation_function", "gelu_new");
    must_be_off(r, "scale_attn_by_inverse_layer_idx");
    must_be_off(r, "add_cross_attention");
    if (!flag(r, "scale_attn_weights", true)) {
        refuse(r, "scale_attn_weights", "is false, which is not supported");
    }
    m->num_layers = whole(r, "n_layer", false);
    m->heads = m->kv_heads = whole(r, "n_head", false);
    m->hidden = whole(r, "n_embd", false);
    m->ffn_hidden = whole(r, "n_inner", true);
    m->max_positions = whole(r, "n_positions", false);
    m->vocab = whole(r, "vocab_size", false);
    m->norm_eps = number(r, "layer_norm_epsilon", 1e-5);
    m->tied = flag(r, "tie_word_embeddings", true);
}

static void read_llama(reader *r, rrfp_model_config *m)
{
    m->arch = RRFP_ARCH_LLAMA;
    must_be(r, "hidden_act", "silu");
    must_be_off(r, "attention_bias");
    must_be_off(r, "mlp_bias");
    m->rope_theta = rope_theta(r);
    m->num_layers = whole(r, "num_hidden_layers", false);
    m->heads = whole(r, "num_attention_heads", false);
    m->kv_heads = whole(r, "num_key_value_heads", true);
    m->hidden = whole(r, "hidden_size", false);
    m->ffn_hidden = whole(r, "intermediate_size", false);
    m->max_positions = whole(r, "max_position_embeddings", true);
    m->vocab = whole(r, "vocab_size", false);
    m->norm_eps = number(r, "rms_norm_eps", 1e-6);
    m->tied = flag(r, "tie_word_embeddings", false);
    uint32_t head = whole(r, "head_dim", true);
    if (head != 0 && m->heads != 0 && head != m->hidden / m->heads) {
        refuse(r, "head_dim", "differs from hidden_size / num_attention_heads, not supported");
    }
}

rrfp_status rrfp_hf_config_read(const char *path, rrfp_model_config *model, rrfp_error *error)
{
    json_error_t where;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &where);
    if (!json_is_object(root)) {
        json_decref(root);
        return rrfp_error_set(error, RRFP_ERR_FORMAT, "%s: line %d: %.150s", path, where.line,
                              where.text);
    }
    const char *type = json_string_value(json_object_get(root, "model_type"));
    rrfp_model_config read;
    reader r = {.path = path, .root = root, .error = error, .status = RRFP_OK};
    memset(&read, 0, sizeof read);
    if (type != NULL && strcmp(type, "gpt2") == 0) {
        read_gpt2(&r, &read);
    } else if (type != NULL && strcmp(type, "llama") == 0) {
        read_llama(&r, &read);
    } else {
        refuse(&r, "model_type", "is neither gpt2 nor llama");
    }
    json_decref(root);
    if (r.status == RRFP_OK) {
        *model = read;
    }
    return r.status;
}
