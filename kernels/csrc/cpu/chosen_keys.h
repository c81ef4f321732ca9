// Which keys a token attends to where an indexer has chosen some of them: lists of places, that `choose` of indexer.h writes and attention
// reads. Included by attention.h.
#pragma once

#include "work.h"

namespace {

using penstock::AttentionArgs;
using penstock::AttentionItem;
using penstock::Row;

// Bits of the keys of some pages, the first key being `first_key`, that are in a list of `most` places, ascending.
SEPARATE void mark_chosen(const int32_t *list, int most, int64_t first_key, int pages, uint16_t *bits) {
    for (int page = 0; page < pages; page++) bits[page] = 0;
    int at = 0;
    for (int left = most; left > 0;) {
        const int half = left / 2;
        if (list[at + half] < first_key)
            at += half + 1, left -= half + 1;
        else
            left = half;
    }
    for (; at < most && list[at] < first_key + pages * PENSTOCK_PAGE_TOKENS; at++) {
        const int64_t key = list[at] - first_key;
        bits[key / PENSTOCK_PAGE_TOKENS] |= static_cast<uint16_t>(1u << (key % PENSTOCK_PAGE_TOKENS));
    }
}

// Of `pages` pages of a split those that a token of the item attends to: how many, their numbers, and for each token of the item a bit
// for each key of them.
SEPARATE int choose_pages(const AttentionArgs &args, const AttentionItem &item, int queries, int64_t first_page, int pages,
                          int *numbers, uint16_t (*bits)[kPagesInSplit]) {
    const Row &row = args.rows[item.row];
    const int64_t first = item.first_query / args.heads.group, last = (item.first_query + queries - 1) / args.heads.group;
    uint16_t any[kPagesInSplit] = {};
    for (int64_t token = first; token <= last; token++) {
        uint16_t *own = bits[token - first];
        if (row.position + token < args.most_chosen)
            for (int page = 0; page < pages; page++) own[page] = 0xffff;
        else
            mark_chosen(reinterpret_cast<const int32_t *>(args.chosen + (row.first_token + token) * args.chosen_bytes),
                        args.most_chosen, first_page * PENSTOCK_PAGE_TOKENS, pages, own);
        for (int page = 0; page < pages; page++) any[page] |= own[page];
    }
    int some = 0;
    for (int page = 0; page < pages; page++) {
        if (!any[page]) continue;
        for (int64_t token = 0; token <= last - first; token++) bits[token][some] = bits[token][page];
        numbers[some++] = page;
    }
    return some;
}

}  // namespace
