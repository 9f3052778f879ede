#include "train/tensorboard.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "core/file.h"
#include "event_reader.h"
#include "scratch.h"

namespace lazy::train {
namespace {

TEST(Crc32c, Crc32c_MatchesKnownAnswers) {  // the expected values are from RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  std::string ascending, descending;
  for (int i = 0; i < 32; ++i) {
    ascending.push_back(static_cast<char>(i));
    descending.push_back(static_cast<char>(31 - i));
  }
  EXPECT_EQ(crc32c(ascending), 0x46DD794Eu);
  EXPECT_EQ(crc32c(descending), 0x113FDB5Cu);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
}

TEST(EventWriter, Events_AreReadByIndependentReader) {
  const ScratchFolder folder;
  const int64_t large = int64_t{3} << 40;  // as a varint, this step number needs six bytes
  EventWriter writer(folder / "tensorboard", 1700000000.25);
  writer.scalars(1, 1700000001.5, {{"loss_metrics/global_avg_loss", 8.317}, {"lr", 0}});
  writer.scalars(large, 1700000002.5, {{"throughput(tps)", 11234.5}});
  const auto events = read_events(read_file(writer.path()));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_EQ(events[0].wall_time, 1700000000.25);
  EXPECT_EQ(events[1].step, 1);
  EXPECT_EQ(events[1].wall_time, 1700000001.5);
  EXPECT_EQ(events[1].scalars, (std::map<std::string, float>{{"loss_metrics/global_avg_loss", 8.317f}, {"lr", 0.f}}));
  EXPECT_EQ(events[2].step, large);
  EXPECT_EQ(events[2].scalars.at("throughput(tps)"), 11234.5f);
}

// Tests the reader that these tests use: it must reject a file in which any bit is flipped.
TEST(EventWriter, IndependentReader_DetectsEveryFlippedBit) {
  const ScratchFolder folder;
  EventWriter writer(folder / "tensorboard", 1);
  writer.scalars(7, 2, {{"loss", 1.5}});
  const std::string good = read_file(writer.path());
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] ^= 0x10;
    EXPECT_THROW(read_events(bad), std::runtime_error) << "byte " << i;
  }
}

TEST(EventWriter, ResumedRun_WritesSessionStart) {
  const ScratchFolder folder;
  EventWriter first(folder / "tensorboard", 100), second(folder / "tensorboard", 100, 21);
  EXPECT_NE(first.path(), second.path());
  const auto events = read_events(read_file(second.path()));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].step, 21);
  EXPECT_EQ(events[1].session_status, 1);  // status 1 is SessionLog.START
}

TEST(EventWriter, TensorboardPackage_ReadsEvents) {
  const std::string python = LAZY_TEST_PYTHON;
  if (std::system((python + " -c 'import tensorboard' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << "the Python package tensorboard is not installed";
  const ScratchFolder folder;
  EventWriter writer(folder / "tensorboard", 1);
  writer.scalars(7, 2, {{"loss", 1.5}});
  const std::string code =
      "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator as E; import sys;"
      "e = E(sys.argv[1]); e.Reload(); [s] = e.Scalars('loss'); assert (s.step, s.value) == (7, 1.5), s";
  EXPECT_EQ(std::system((python + " -c \"" + code + "\" " + (folder / "tensorboard").string()).c_str()), 0);
}

}  // namespace
}  // namespace lazy::train
