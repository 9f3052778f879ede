#include "core/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <set>

#include "core/error.h"
#include "core/output_folder.h"

namespace lazy {
namespace fs = std::filesystem;

TEST(File, FailedWrite_KeepsOldContent) {
  const fs::path folder = fs::path(testing::TempDir()) / ("file_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  write_file_atomic(folder / "x", "old");
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit former{};
  getrlimit(RLIMIT_FSIZE, &former);
  const rlimit small{1 << 16, former.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);  // simulates a full disk: writes beyond 64 KiB fail
  EXPECT_THROW(write_file_atomic(folder / "x", std::string(1 << 20, 'n')), RunError);
  setrlimit(RLIMIT_FSIZE, &former);
  EXPECT_EQ(read_file(folder / "x"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);  // no temporary file remains
  fs::remove_all(folder);
}

TEST(File, AtomicWrite_KeepsLinksAndDevices) {
  const fs::path folder = fs::path(testing::TempDir()) / ("links_" + std::to_string(::getpid()));
  fs::create_directories(folder / "elsewhere");
  write_file_atomic(folder / "elsewhere/target", "old");
  fs::create_symlink("elsewhere/target", folder / "link");
  fs::create_symlink("elsewhere/new", folder / "dangling");
  write_file_atomic(folder / "link", "new");
  write_file_atomic(folder / "dangling", "created");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read_file(folder / "elsewhere/target"), "new");
  EXPECT_EQ(read_file(folder / "elsewhere/new"), "created");
  write_file_atomic("/dev/null", "gone");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  fs::remove_all(folder);
}

TEST(OutputFolder, Publish_IsAtomicAndReplacesOnlyOnRequest) {
  const fs::path folder = fs::path(testing::TempDir()) / ("output_" + std::to_string(::getpid()));
  const auto names = [&] {
    std::set<std::string> out;
    for (const auto& entry : fs::directory_iterator(folder)) out.insert(entry.path().filename().string());
    return out;
  };
  {
    OutputFolder unfinished(folder / "a"), other(folder / "a");  // the temporary names must differ
    EXPECT_NE(unfinished.path(), other.path());
    write_file_atomic(unfinished.path() / "x", "1");
    write_file_atomic(other.path() / "x", "2");
    EXPECT_FALSE(fs::exists(folder / "a"));
    unfinished.publish(/*replace=*/false);
    EXPECT_EQ(read_file(folder / "a/x"), "1");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder / "a"), fs::directory_iterator()), 1)
        << "the marker file has been removed";
    EXPECT_THROW(other.publish(/*replace=*/false), RunError);
    EXPECT_EQ(read_file(folder / "a/x"), "1");
    EXPECT_EQ(read_file(other.path().empty() ? folder / "a/x" : other.path() / "x"), "1");
  }
  EXPECT_EQ(names().size(), 2u) << "the result that was not published is kept";
  for (const std::string& name : names()) {
    if (name != "a") fs::remove_all(folder / name);
  }
  fs::create_directories(folder / "target");
  fs::create_directory_symlink("target", folder / "link");
  OutputFolder through(folder / "link");
  write_file_atomic(through.path() / "x", "3");
  through.publish(/*replace=*/true);
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read_file(folder / "target/x"), "3");
  OutputFolder replacing(folder / "a");
  write_file_atomic(replacing.path() / "y", "4");
  replacing.publish(/*replace=*/true);
  EXPECT_FALSE(fs::exists(folder / "a/x"));
  EXPECT_EQ(names(), (std::set<std::string>{"a", "link", "target"}));
  fs::remove_all(folder);
}

TEST(File, FileWriter_OverwritesHeader) {
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
