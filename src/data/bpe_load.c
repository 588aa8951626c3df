/* bpe_load.c - vocab.json and merges.txt, both untrusted, into the tables of a BPE tokenizer. */
#include "data/bpe.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Characters of error lines are cut to this many bytes, so that the remedy still fits. */
#define SHOWN 60

static bool stands_for_itself(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* The byte for which a character of the files stands, or -1. */
static int byte_of_character(uint32_t character)
{
    unsigned next = 0x100;

    if (character < 0x100) {
        return stands_for_itself(character) ? (int)character : -1;
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        if (!stands_for_itself(byte) && next++ == character) {
            return (int)byte;
        }
    }
    return -1;
}

/*
 * Turns the characters of a token into its bytes, which are never more.  All legal
 * characters lie below U+0144, so one or two bytes of UTF-8 are all there is to read.
 */
static bool token_to_bytes(const char *token, size_t token_bytes, uint8_t *out, size_t *out_bytes)
{
    size_t written = 0;

    for (size_t i = 0; i < token_bytes;) {
        uint8_t first = (uint8_t)token[i];
        uint32_t character = first;
        if (first >= 0x80) {
            if ((first & 0xe0) != 0xc0 || i + 1 == token_bytes ||
                ((uint8_t)token[i + 1] & 0xc0) != 0x80) {
                return false;
            }
            character = ((uint32_t)(first & 0x1f) << 6) | ((uint8_t)token[i + 1] & 0x3fu);
            i++;
            if (character < 0x80) {
                return false; /* overlong */
            }
        }
        i++;
        int byte = byte_of_character(character);
        if (byte < 0) {
            return false;
        }
        out[written++] = (uint8_t)byte;
    }
    *out_bytes = written;
    return true;
}

static rrfp_status no_memory(const char *name, rrfp_error *error)
{
    return rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory to load '%s'", name);
}

/* Checks every entry and gives the keys by id; *total_bytes is their length in UTF-8. */
static rrfp_status collect_keys(json_t *root, const char **keys, size_t count, size_t *total_bytes,
                                const char *name, rrfp_error *error)
{
    const char *key = NULL;
    json_t *value = NULL;

    *total_bytes = 0;
    json_object_foreach (root, key, value) {
        if (!json_is_integer(value)) {
            return rrfp_error_set(error, RRFP_ERR_FORMAT,
                                  "'%s': token '%.*s' has no whole number as its id", name, SHOWN,
                                  key);
        }
        json_int_t id = json_integer_value(value);
        if (id < 0 || (uint64_t)id >= count) {
            return rrfp_error_set(error, RRFP_ERR_FORMAT,
                                  "'%s': token '%.*s' has id %lld; the ids of %zu tokens must be "
                                  "0 to %zu",
                                  name, SHOWN, key, (long long)id, count, count - 1);
        }
        if (keys[id] != NULL) {
            return rrfp_error_set(error, RRFP_ERR_FORMAT,
                                  "'%s': tokens '%.*s' and '%.*s' have the same id %lld", name,
                                  SHOWN, keys[id], SHOWN, key, (long long)id);
        }
        keys[id] = key;
        *total_bytes += strlen(key);
    }
    return RRFP_OK;
}

static rrfp_status fill_tokens(rrfp_bpe *bpe, const char *const *keys, size_t count,
                               const char *name, rrfp_error *error)
{
    static const char end_of_text[] = "<|endoftext|>";

    for (int byte = 0; byte < 256; byte++) {
        bpe->byte_ids[byte] = -1;
    }
    for (size_t id = 0; id < count; id++) {
        uint8_t *bytes = bpe->token_bytes + bpe->token_offsets[id];
        size_t length = 0;
        if (!token_to_bytes(keys[id], strlen(keys[id]), bytes, &length) || length == 0) {
            return rrfp_error_set(error, RRFP_ERR_FORMAT,
                                  "'%s': token '%.*s' (id %zu) is not written in the byte "
                                  "alphabet of GPT-2; give a byte-level BPE vocabulary",
                                  name, SHOWN, keys[id], id);
        }
        bpe->token_offsets[id + 1] = bpe->token_offsets[id] + length;
        if (length == 1) {
            bpe->byte_ids[bytes[0]] = (int32_t)id;
        }
        if (length == sizeof end_of_text - 1 && memcmp(bytes, end_of_text, length) == 0) {
            bpe->base.end_of_text = (int32_t)id;
        }
    }
    for (int byte = 0; byte < 256; byte++) {
        if (bpe->byte_ids[byte] < 0) {
            return rrfp_error_set(error, RRFP_ERR_FORMAT,
                                  "'%s' has no token for the single byte 0x%02x; a byte-level "
                                  "vocabulary needs all 256",
                                  name, (unsigned)byte);
        }
    }
    return RRFP_OK;
}

rrfp_status rrfp_bpe_load_vocab(rrfp_bpe *bpe, const char *json, size_t json_bytes,
                                const char *name, rrfp_error *error)
{
    json_error_t reason;
    rrfp_status status = RRFP_OK;
    size_t total_bytes = 0;
    const char **keys = NULL;

    if (json_bytes > BPE_MAX_FILE_BYTES) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT, "'%s' has %zu bytes; at most %d are read",
                              name, json_bytes, BPE_MAX_FILE_BYTES);
    }
    json_t *root = json_loadb(json, json_bytes, JSON_REJECT_DUPLICATES, &reason);
    if (root == NULL) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT, "'%s' line %d: %s", name, reason.line,
                              reason.text);
    }
    size_t count = json_object_size(root);
    if (!json_is_object(root) || count == 0 || count > BPE_MAX_VOCAB) {
        status = rrfp_error_set(error, RRFP_ERR_FORMAT,
                                "'%s' must be one JSON object of 1 to %d tokens and their ids",
                                name, BPE_MAX_VOCAB);
        goto out;
    }
    keys = calloc(count, sizeof *keys);
    if (keys == NULL) {
        status = no_memory(name, error);
        goto out;
    }
    status = collect_keys(root, keys, count, &total_bytes, name, error);
    if (status != RRFP_OK) {
        goto out;
    }
    /* count ids, all in range and no two alike: each has its key. */
    bpe->base.vocab = (uint32_t)count;
    bpe->base.end_of_text = -1;
    bpe->token_bytes = malloc(total_bytes + 1);
    bpe->token_offsets = calloc(count + 1, sizeof *bpe->token_offsets);
    if (bpe->token_bytes == NULL || bpe->token_offsets == NULL) {
        status = no_memory(name, error);
        goto out;
    }
    status = fill_tokens(bpe, keys, count, name, error);
out:
    free(keys);
    json_decref(root);
    return status;
}

/* Token bytes -> id, needed only while merges are read. */
typedef struct token_index {
    uint32_t *slots; /* id + 1, 0 = empty */
    uint32_t mask;
} token_index;

static uint32_t hash_bytes(const uint8_t *bytes, size_t count)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    for (size_t i = 0; i < count; i++) {
        hash = (hash ^ bytes[i]) * 16777619u;
    }
    return hash ^ (hash >> 15);
}

/* A power of two with at least half the slots empty. */
static uint32_t slots_for(uint32_t count)
{
    uint32_t slots = 16;

    while (slots < 2 * count) {
        slots *= 2;
    }
    return slots;
}

static const uint8_t *token_at(const rrfp_bpe *bpe, uint32_t id, size_t *bytes)
{
    *bytes = bpe->token_offsets[id + 1] - bpe->token_offsets[id];
    return bpe->token_bytes + bpe->token_offsets[id];
}

static bool token_index_build(token_index *index, const rrfp_bpe *bpe)
{
    uint32_t slots = slots_for(bpe->base.vocab);

    index->mask = slots - 1;
    index->slots = calloc(slots, sizeof *index->slots);
    if (index->slots == NULL) {
        return false;
    }
    for (uint32_t id = 0; id < bpe->base.vocab; id++) {
        size_t bytes = 0;
        const uint8_t *token = token_at(bpe, id, &bytes);
        uint32_t slot = hash_bytes(token, bytes) & index->mask;
        while (index->slots[slot] != 0) {
            slot = (slot + 1) & index->mask;
        }
        index->slots[slot] = id + 1;
    }
    return true;
}

static int32_t token_index_find(const token_index *index, const rrfp_bpe *bpe,
                                const uint8_t *bytes, size_t count)
{
    uint32_t slot = hash_bytes(bytes, count) & index->mask;

    for (; index->slots[slot] != 0; slot = (slot + 1) & index->mask) {
        uint32_t id = index->slots[slot] - 1;
        size_t token_bytes = 0;
        const uint8_t *token = token_at(bpe, id, &token_bytes);
        if (token_bytes == count && memcmp(token, bytes, count) == 0) {
            return (int32_t)id;
        }
    }
    return -1;
}

static uint32_t pair_slot(const rrfp_bpe *bpe, int32_t left, int32_t right)
{
    uint64_t key = ((uint64_t)(uint32_t)left << 32) | (uint32_t)right;

    key *= UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(key >> 32) & bpe->pair_slot_mask;
}

int64_t rrfp_bpe_rank(const rrfp_bpe *bpe, int32_t left, int32_t right)
{
    uint32_t slot = pair_slot(bpe, left, right);

    for (; bpe->pair_slots[slot] != 0; slot = (slot + 1) & bpe->pair_slot_mask) {
        uint32_t rank = bpe->pair_slots[slot] - 1;
        if (bpe->merges[rank].left == left && bpe->merges[rank].right == right) {
            return rank;
        }
    }
    return BPE_NO_RANK;
}

/* One line of merges.txt, not empty, without its line end. */
static rrfp_status add_merge(rrfp_bpe *bpe, const token_index *index, const char *line,
                             size_t line_bytes, size_t number, uint8_t *scratch, const char *name,
                             rrfp_error *error)
{
    const char *space = memchr(line, ' ', line_bytes);
    size_t left_bytes = space == NULL ? 0 : (size_t)(space - line);
    size_t right_bytes = space == NULL ? 0 : line_bytes - left_bytes - 1;
    size_t left_length = 0, right_length = 0;
    int shown = line_bytes < SHOWN ? (int)line_bytes : SHOWN;
    bpe_merge merge;

    if (left_bytes == 0 || right_bytes == 0 || memchr(space + 1, ' ', right_bytes) != NULL) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "'%s' line %zu: '%.*s' is not two tokens with one space between",
                              name, number, shown, line);
    }
    if (!token_to_bytes(line, left_bytes, scratch, &left_length) ||
        !token_to_bytes(space + 1, right_bytes, scratch + left_length, &right_length)) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "'%s' line %zu: '%.*s' is not written in the byte alphabet of GPT-2",
                              name, number, shown, line);
    }
    merge.left = token_index_find(index, bpe, scratch, left_length);
    merge.right = token_index_find(index, bpe, scratch + left_length, right_length);
    merge.merged = token_index_find(index, bpe, scratch, left_length + right_length);
    if (merge.left < 0 || merge.right < 0 || merge.merged < 0) {
        const char *missing = merge.left < 0    ? "left part"
                              : merge.right < 0 ? "right part"
                                                : "merged token";
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "'%s' line %zu: the %s of '%.*s' is not in the vocabulary; "
                              "give the merges that belong to it",
                              name, number, missing, shown, line);
    }
    if (rrfp_bpe_rank(bpe, merge.left, merge.right) != BPE_NO_RANK) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT, "'%s' line %zu: '%.*s' is there twice", name,
                              number, shown, line);
    }
    uint32_t slot = pair_slot(bpe, merge.left, merge.right);
    while (bpe->pair_slots[slot] != 0) {
        slot = (slot + 1) & bpe->pair_slot_mask;
    }
    bpe->merges[bpe->merge_count++] = merge;
    bpe->pair_slots[slot] = bpe->merge_count;
    return RRFP_OK;
}

rrfp_status rrfp_bpe_load_merges(rrfp_bpe *bpe, const char *text, size_t text_bytes,
                                 const char *name, rrfp_error *error)
{
    static const char version[] = "#version";
    token_index index = {NULL, 0};
    uint8_t *scratch = NULL;
    rrfp_status status = RRFP_OK;
    size_t lines = 1;

    if (text_bytes > BPE_MAX_FILE_BYTES) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT, "'%s' has %zu bytes; at most %d are read",
                              name, text_bytes, BPE_MAX_FILE_BYTES);
    }
    for (size_t i = 0; i < text_bytes; i++) {
        lines += text[i] == '\n';
    }
    /* A line is at most one merge. */
    uint32_t slots = slots_for((uint32_t)lines);
    bpe->pair_slot_mask = slots - 1;
    bpe->pair_slots = calloc(slots, sizeof *bpe->pair_slots);
    bpe->merges = calloc(lines, sizeof *bpe->merges);
    scratch = malloc(text_bytes + 1);
    if (bpe->pair_slots == NULL || bpe->merges == NULL || scratch == NULL ||
        !token_index_build(&index, bpe)) {
        status = no_memory(name, error);
    }
    size_t begin = 0;
    for (size_t number = 1; begin < text_bytes && status == RRFP_OK; number++) {
        const char *line = text + begin;
        const char *newline = memchr(line, '\n', text_bytes - begin);
        size_t line_bytes = newline == NULL ? text_bytes - begin : (size_t)(newline - line);
        begin += line_bytes + 1;
        if (line_bytes > 0 && line[line_bytes - 1] == '\r') {
            line_bytes--;
        }
        if (number == 1 && line_bytes >= sizeof version - 1 &&
            memcmp(line, version, sizeof version - 1) == 0) {
            continue;
        }
        if (line_bytes == 0 && begin >= text_bytes) {
            break; /* an empty last line is harmless */
        }
        status = add_merge(bpe, &index, line, line_bytes, number, scratch, name, error);
    }
    free(index.slots);
    free(scratch);
    return status;
}

void rrfp_bpe_free(rrfp_bpe *bpe)
{
    if (bpe != NULL) {
        rrfp_pretokenizer_close(bpe->pretokenizer);
        free(bpe->token_bytes);
        free(bpe->token_offsets);
        free(bpe->merges);
        free(bpe->pair_slots);
        free(bpe);
    }
}
