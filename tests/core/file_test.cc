#include "core/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "core/error.h"

namespace lazy {
namespace fs = std::filesystem;

TEST(File, AFailedWriteLeavesTheFormerContent) {
  const fs::path folder = fs::path(testing::TempDir()) / ("file_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  write_file_atomic(folder / "x", "old");
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit former{};
  getrlimit(RLIMIT_FSIZE, &former);
  const rlimit small{1 << 16, former.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);  // stands for a full disk: writes beyond 64 KiB fail
  EXPECT_THROW(write_file_atomic(folder / "x", std::string(1 << 20, 'n')), RunError);
  setrlimit(RLIMIT_FSIZE, &former);
  EXPECT_EQ(read_file(folder / "x"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);  // no temporary left
  fs::remove_all(folder);
}

TEST(File, WriterOverwritesItsHeader) {
  const fs::path path = fs::path(testing::TempDir()) / ("writer_" + std::to_string(::getpid()));
  FileWriter writer(path);
  writer.write("????");
  writer.write(std::string(3 << 20, 'b'));
  writer.write_at(0, "head", 4);
  writer.close();
  const MappedFile map(path);
  EXPECT_EQ(map.size(), 4u + (3 << 20));
  EXPECT_EQ(map.view().substr(0, 5), "headb");
  fs::remove(path);
  EXPECT_THROW(MappedFile{path}, Error);
}

}  // namespace lazy
