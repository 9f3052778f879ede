#include "eval/tasks/fewshot.h"

#include "core/error.h"
#include "eval/tasks/question.h"

namespace lazy::eval {

FewshotSampler::FewshotSampler(const Task& task, std::vector<Row> pool, int64_t count, uint64_t seed)
    : task_(task), pool_(std::move(pool)), count_(static_cast<size_t>(count)), random_(seed) {
  const size_t needed = count_ + (task.exclude_document ? 1 : 0);
  if (count_ > 0 && pool_.size() < needed) {
    fail("eval", "--num-fewshot {}: task {} needs {} examples to draw from, {} are there", count, task.name, needed,
         pool_.size());
  }
}

std::vector<const Row*> FewshotSampler::draw(const Row& document) {
  std::vector<const Row*> drawn;
  if (!task_.exclude_document) {
    for (const size_t i : random_.sample(pool_.size(), count_)) drawn.push_back(&pool_[i]);
    return drawn;
  }
  for (const size_t i : random_.sample(pool_.size(), count_ + 1)) {
    if (drawn.size() < count_ && pool_[i].document != document.document) drawn.push_back(&pool_[i]);
  }
  if (drawn.size() == count_) return drawn;
  // The pool holds the document more than once: a second draw, from the others alone.
  std::vector<const Row*> others;
  for (const Row& row : pool_) {
    if (row.document != document.document) others.push_back(&row);
  }
  if (others.size() < count_)
    fail("eval", "{}: {} examples are wanted, {} differ from the document", document.where, count_, others.size());
  drawn.clear();
  for (const size_t i : random_.sample(others.size(), count_)) drawn.push_back(others[i]);
  return drawn;
}

std::string FewshotSampler::next(const Row& document) {
  std::string examples;
  if (count_ == 0) return examples;
  for (const Row* row : draw(document)) examples += make_example(task_, *row);
  return examples;
}

}  // namespace lazy::eval
