// What a program does beside other ranks of its model: where their memory is, and what they give each other behind a step. The sums within
// a step are operations (PENSTOCK_REDUCE).
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "program.h"

namespace penstock {

void Program::throw_lost() {
    throw RankLost("another rank of the model has ended");
}

Program::SharedPlaces Program::shared_places(int64_t tokens, int64_t rows) const {
    SharedPlaces places;
    int64_t end = Ranks::kDoorBytes, row_bytes = kLine;
    const auto place = [&end](int64_t bytes) {
        const int64_t begin = end;
        end = round_up(end + bytes, kPage);
        return begin;
    };
    for (const Buffer &buffer : buffers_)
        if (buffer.layout == PENSTOCK_SHARED) row_bytes = std::max(row_bytes, row_bytes_of(buffer));
    for (int64_t &region : places.regions) region = place(row_bytes * round_up(tokens, kRowBlock));
    for (int64_t &told : places.told) told = place(PENSTOCK_MOST_TOLD);
    const int columns = head_.empty() ? 0 : buffers_[static_cast<size_t>(head_.back().target)].width;
    places.logits = place(rows * round_up(columns, 16) * 4);
    places.end = end;
    return places;
}

int64_t Program::shared_bytes(int64_t tokens, int64_t rows, int ranks) const {
    return shared_places(tokens, rows).end * ranks;
}

void Program::share(uint8_t *memory, int64_t tokens, int64_t rows, int rank, std::vector<int> sockets, int64_t columns) {
    const auto ranks = static_cast<int64_t>(sockets.size());
    if (rank < 0 || rank >= ranks || ranks < 2) throw wrong("a rank that is not there");
    const int64_t part = head_.empty() ? 0 : buffers_[static_cast<size_t>(head_.back().target)].width;
    if (columns > part * ranks) throw wrong("more logits than the ranks' heads make");
    places_ = shared_places(tokens, rows);
    ranks_ = std::make_unique<Ranks>(memory, places_.end, rank, std::move(sockets));
    logits_columns_ = columns;
    summaries_.reserve(static_cast<size_t>(rows * ((columns + kSummarized - 1) / kSummarized)));
    reduced_ = told_ = 0, met_at_head_ = 0;
}

void Program::place_shared() {
    if (!ranks_) throw wrong("a step of one rank without the others");
    for (Buffer &buffer : buffers_)
        if (buffer.turn >= 0)
            buffer.external = ranks_->memory(ranks_->rank()) + places_.regions[(reduced_ + buffer.turn) % 2];
    reduced_ += reductions_;
}

void Program::meet() {
    if (is_lost_ || !ranks_->meet()) is_lost_ = true;
    if (is_lost_) throw_lost();
}

void Program::tell(void *numbers, int64_t bytes) {
    if (!ranks_ || bytes < 0) throw wrong("nobody to tell anything");
    for (int64_t begin = 0; begin < bytes; begin += PENSTOCK_MOST_TOLD) {
        const auto count = static_cast<size_t>(std::min<int64_t>(bytes - begin, PENSTOCK_MOST_TOLD));
        uint8_t *own = static_cast<uint8_t *>(numbers) + begin;
        // What was told before may still be read.
        uint8_t *told = ranks_->memory(0) + places_.told[told_++ % 2];
        if (ranks_->rank() == 0) std::memcpy(told, own, count);
        meet();
        if (ranks_->rank() != 0) std::memcpy(own, told, count);
    }
}

void Program::head_of_ranks(int64_t rows, float *target, int64_t target_stride) {
    // Logits of the last call may still be read, unless ranks have met behind it.
    if (ranks_->met() == met_at_head_) meet();
    Buffer &out = buffers_[static_cast<size_t>(head_.back().target)];
    const int64_t stride = round_up(out.width, 16);
    out.external = ranks_->memory(ranks_->rank()) + places_.logits, out.row_bytes = stride * 4;
    run(head_, 0, head_.size(), rows);
    meet();
    met_at_head_ = ranks_->met();
    if (ranks_->rank() != 0) return;
    for (int rank = 0; rank < ranks_->count(); rank++) {
        const auto *from = reinterpret_cast<const float *>(ranks_->memory(rank) + places_.logits);
        const int64_t first = int64_t{out.width} * rank, count = std::min<int64_t>(out.width, logits_columns_ - first);
        for (int64_t row = 0; row < rows && count > 0; row++)
            std::memcpy(target + row * target_stride + first, from + row * stride, static_cast<size_t>(count) * 4);
    }
}

}  // namespace penstock
