/*
 * tokenizer_bpe.c - GPT-2's byte-level BPE: encode by rank-ordered merges, decode by table.
 *
 * A piece is a doubly linked list over its bytes; a heap holds the possible merges
 * as (rank, position), so that a piece of n bytes costs n log n however long:
 *
 *   position   0    1    2    3    4          after 1+2 and then 0+1 merged:
 *   id         h <-> e <-> l <-> l <-> o      hel <---------> l <-> o
 *
 * A token keeps the position of its first byte.  An entry of the heap is stale, and
 * skipped, when its two tokens are no longer there.  Like the reference, one rank is
 * applied everywhere, left to right, before the pairs it gives rise to compete.
 */
#include "data/bpe.h"
#include "data/file_map.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

/* The longest piece; positions, and the workspace's sizes, then fit without overflow. */
enum { MAX_PIECE_BYTES = 1 << 30 };

typedef struct symbol {
    int32_t id; /* -1: swallowed by the token to its left */
    uint32_t previous, next;
} symbol;

typedef struct workspace {
    symbol *symbols;
    uint64_t *heap;    /* rank << 32 | position, least on top */
    uint64_t *pending; /* pairs born in the current round */
    size_t capacity;   /* bytes of the longest piece it serves */
    size_t heap_count, pending_count;
} workspace;

typedef struct id_buffer {
    int32_t *ids;
    size_t count, capacity;
} id_buffer;

static rrfp_status no_memory(rrfp_error *error)
{
    return rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory to encode text");
}

static bool id_buffer_reserve(id_buffer *buffer, size_t more)
{
    if (more <= buffer->capacity - buffer->count) {
        return true;
    }
    size_t limit = SIZE_MAX / sizeof *buffer->ids;
    if (more > limit - buffer->count) {
        return false;
    }
    size_t need = buffer->count + more;
    size_t capacity = need < limit / 2 ? 2 * need : limit;
    int32_t *ids = realloc(buffer->ids, capacity * sizeof *ids);
    if (ids == NULL) {
        return false;
    }
    buffer->ids = ids;
    buffer->capacity = capacity;
    return true;
}

static void workspace_free(workspace *space)
{
    free(space->symbols);
    free(space->heap);
    free(space->pending);
    memset(space, 0, sizeof *space);
}

/*
 * n bytes start with n - 1 pairs; each of at most n - 1 merges adds at most two, so
 * three n entries hold all there ever are, and two n those of one round.
 */
static bool workspace_reserve(workspace *space, size_t bytes)
{
    if (bytes <= space->capacity) {
        return true;
    }
    size_t capacity = bytes < 256 ? 256 : bytes;
    workspace_free(space);
    space->symbols = malloc(capacity * sizeof *space->symbols);
    space->heap = malloc(3 * capacity * sizeof *space->heap);
    space->pending = malloc(2 * capacity * sizeof *space->pending);
    if (space->symbols == NULL || space->heap == NULL || space->pending == NULL) {
        workspace_free(space);
        return false;
    }
    space->capacity = capacity;
    return true;
}

static void heap_push(workspace *space, uint64_t entry)
{
    uint64_t *heap = space->heap;
    size_t at = space->heap_count++;

    while (at > 0 && heap[(at - 1) / 2] > entry) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = entry;
}

static uint64_t heap_pop(workspace *space)
{
    uint64_t *heap = space->heap;
    uint64_t top = heap[0];
    size_t count = --space->heap_count;
    uint64_t entry = heap[count];
    size_t at = 0;

    for (size_t child = 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && heap[child + 1] < heap[child]) {
            child++;
        }
        if (heap[child] >= entry) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = entry;
    return top;
}

/* The pair that starts at `left`, if it can merge, joins those of this round. */
static void add_pair(const rrfp_bpe *bpe, workspace *space, uint32_t left)
{
    const symbol *symbols = space->symbols;
    int64_t rank = rrfp_bpe_rank(bpe, symbols[left].id, symbols[symbols[left].next].id);

    if (rank != BPE_NO_RANK) {
        space->pending[space->pending_count++] = ((uint64_t)rank << 32) | left;
    }
}

static void merge_at(const rrfp_bpe *bpe, workspace *space, uint32_t rank, uint32_t left)
{
    symbol *symbols = space->symbols;
    const bpe_merge *merge = &bpe->merges[rank];
    uint32_t right = symbols[left].next;

    if (symbols[left].id != merge->left || right == NONE || symbols[right].id != merge->right) {
        return; /* stale */
    }
    symbols[left].id = merge->merged;
    symbols[left].next = symbols[right].next;
    symbols[right].id = -1;
    if (symbols[left].next != NONE) {
        symbols[symbols[left].next].previous = left;
        add_pair(bpe, space, left);
    }
    if (symbols[left].previous != NONE) {
        add_pair(bpe, space, symbols[left].previous);
    }
}

static void merge_piece(const rrfp_bpe *bpe, workspace *space, const uint8_t *piece, size_t bytes)
{
    symbol *symbols = space->symbols;

    for (size_t i = 0; i < bytes; i++) {
        symbols[i].id = bpe->byte_ids[piece[i]];
        symbols[i].previous = i == 0 ? NONE : (uint32_t)(i - 1);
        symbols[i].next = i + 1 == bytes ? NONE : (uint32_t)(i + 1);
    }
    space->heap_count = 0;
    space->pending_count = 0;
    for (size_t i = 0; i + 1 < bytes; i++) {
        add_pair(bpe, space, (uint32_t)i);
    }
    for (;;) {
        for (size_t i = 0; i < space->pending_count; i++) {
            heap_push(space, space->pending[i]);
        }
        space->pending_count = 0;
        if (space->heap_count == 0) {
            return;
        }
        uint32_t rank = (uint32_t)(space->heap[0] >> 32);
        while (space->heap_count > 0 && space->heap[0] >> 32 == rank) {
            merge_at(bpe, space, rank, (uint32_t)heap_pop(space));
        }
    }
}

static rrfp_status encode_piece(const rrfp_bpe *bpe, workspace *space, const uint8_t *piece,
                                size_t bytes, id_buffer *buffer, rrfp_error *error)
{
    if (bytes > MAX_PIECE_BYTES) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "the text has a word of %zu bytes; at most %d can be encoded", bytes,
                              (int)MAX_PIECE_BYTES);
    }
    if (!workspace_reserve(space, bytes) || !id_buffer_reserve(buffer, bytes)) {
        return no_memory(error);
    }
    merge_piece(bpe, space, piece, bytes);
    for (uint32_t at = 0; at != NONE; at = space->symbols[at].next) {
        buffer->ids[buffer->count++] = space->symbols[at].id;
    }
    return RRFP_OK;
}

static rrfp_status bpe_encode(const rrfp_tokenizer *tokenizer, const uint8_t *text,
                              size_t text_bytes, int32_t **ids, size_t *count, rrfp_error *error)
{
    const rrfp_bpe *bpe = (const rrfp_bpe *)tokenizer;
    rrfp_piece_cursor *cursor = NULL;
    workspace space = {0};
    id_buffer buffer = {0};
    rrfp_status status =
        rrfp_piece_cursor_open(bpe->pretokenizer, text, text_bytes, &cursor, error);

    if (status == RRFP_OK && !id_buffer_reserve(&buffer, text_bytes / 4 + 1)) {
        status = no_memory(error);
    }
    while (status == RRFP_OK) {
        const uint8_t *piece = NULL;
        size_t bytes = 0;
        status = rrfp_piece_cursor_next(cursor, &piece, &bytes, error);
        if (status == RRFP_OK && bytes == 0) {
            break;
        }
        if (status == RRFP_OK) {
            status = encode_piece(bpe, &space, piece, bytes, &buffer, error);
        }
    }
    rrfp_piece_cursor_close(cursor);
    workspace_free(&space);
    if (status != RRFP_OK) {
        free(buffer.ids);
        return status;
    }
    *ids = buffer.ids;
    *count = buffer.count;
    return RRFP_OK;
}

static rrfp_status bpe_decode(const rrfp_tokenizer *tokenizer, const int32_t *ids, size_t count,
                              char **text, size_t *text_bytes, rrfp_error *error)
{
    const rrfp_bpe *bpe = (const rrfp_bpe *)tokenizer;
    size_t total = 0;
    char *out = NULL;

    for (size_t i = 0; i < count; i++) {
        size_t length = bpe->token_offsets[ids[i] + 1] - bpe->token_offsets[ids[i]];
        if (length >= SIZE_MAX - total) {
            return rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory to decode %zu tokens", count);
        }
        total += length;
    }
    out = malloc(total + 1);
    if (out == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory to decode %zu tokens", count);
    }
    size_t written = 0;
    for (size_t i = 0; i < count; i++) {
        size_t begin = bpe->token_offsets[ids[i]];
        size_t length = bpe->token_offsets[ids[i] + 1] - begin;
        memcpy(out + written, bpe->token_bytes + begin, length);
        written += length;
    }
    out[total] = '\0';
    *text = out;
    *text_bytes = total;
    return RRFP_OK;
}

static void bpe_close(rrfp_tokenizer *tokenizer)
{
    rrfp_bpe_free((rrfp_bpe *)tokenizer);
}

rrfp_status rrfp_tokenizer_open_bpe_memory(const char *vocab, size_t vocab_bytes,
                                           const char *vocab_name, const char *merges,
                                           size_t merges_bytes, const char *merges_name,
                                           rrfp_tokenizer **out, rrfp_error *error)
{
    static const rrfp_tokenizer_ops ops = {bpe_encode, bpe_decode, bpe_close};
    rrfp_bpe *bpe = calloc(1, sizeof *bpe);
    rrfp_status status = RRFP_OK;

    if (bpe == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory for a tokenizer");
    }
    bpe->base.ops = &ops;
    bpe->base.name = "gpt2-bpe";
    status = rrfp_pretokenizer_open(&bpe->pretokenizer, error);
    if (status == RRFP_OK) {
        status = rrfp_bpe_load_vocab(bpe, vocab, vocab_bytes, vocab_name, error);
    }
    if (status == RRFP_OK) {
        status = rrfp_bpe_load_merges(bpe, merges, merges_bytes, merges_name, error);
    }
    if (status != RRFP_OK) {
        rrfp_bpe_free(bpe);
        return status;
    }
    *out = &bpe->base;
    return RRFP_OK;
}

rrfp_status rrfp_tokenizer_open_bpe(const char *vocab_path, const char *merges_path,
                                    rrfp_tokenizer **out, rrfp_error *error)
{
    rrfp_file_map vocab = {NULL, 0};
    rrfp_file_map merges = {NULL, 0};
    rrfp_status status = rrfp_file_map_open(vocab_path, &vocab, error);

    if (status == RRFP_OK) {
        status = rrfp_file_map_open(merges_path, &merges, error);
    }
    if (status == RRFP_OK && vocab.size_bytes == 0) {
        status = rrfp_error_set(error, RRFP_ERR_FORMAT, "'%s' is empty; give a vocab.json",
                                vocab_path);
    }
    if (status == RRFP_OK) {
        status = rrfp_tokenizer_open_bpe_memory((const char *)vocab.bytes, vocab.size_bytes,
                                                vocab_path, (const char *)merges.bytes,
                                                merges.size_bytes, merges_path, out, error);
    }
    rrfp_file_map_close(&vocab);
    rrfp_file_map_close(&merges);
    return status;
}
