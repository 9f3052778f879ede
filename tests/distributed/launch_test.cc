// Tests how the rank and the number of ranks are read from the environment variables that launchers set.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "distributed/launch.h"
#include "support/error_of.h"

namespace lazy::distributed {
namespace {

class LaunchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE",
          "TORCHELASTIC_RESTART_COUNT", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
          "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
          "SLURM_STEP_NODELIST", "SLURM_JOB_ID"}) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      ::unsetenv(name);
    }
  }
  void TearDown() override {
    for (const auto& name : set_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  void set(const std::map<std::string, std::string>& values) {
    for (const auto& [name, value] : values) {
      ::setenv(name.c_str(), value.c_str(), 1);
      set_.push_back(name);
    }
  }
  std::string error() {
    return error_of([] { rank_info_from_environment(); });
  }

 private:
  std::map<std::string, std::string> before_;
  std::vector<std::string> set_;
};

TEST_F(LaunchTest, NoLauncher_GivesOneRank) {
  EXPECT_EQ(rank_info_from_environment().size, 1);
  // Slurm also sets these variables in a batch script, where only one process runs.
  set({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}});
  EXPECT_EQ(rank_info_from_environment().size, 1);
}

TEST_F(LaunchTest, Torchrun_SetsRankInfo) {
  set({{"RANK", "3"},
       {"WORLD_SIZE", "8"},
       {"LOCAL_RANK", "1"},
       {"MASTER_ADDR", "host"},
       {"MASTER_PORT", "1234"},
       {"TORCHELASTIC_USE_AGENT_STORE", "True"},
       {"TORCHELASTIC_RESTART_COUNT", "2"}});
  const RankInfo info = rank_info_from_environment();
  EXPECT_EQ(info.rank, 3);
  EXPECT_EQ(info.size, 8);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.master_address, "host");
  EXPECT_EQ(info.master_port, 1234);
  EXPECT_TRUE(info.agent_store);
  EXPECT_EQ(info.restart_count, 2);
}

TEST_F(LaunchTest, MpirunOnOneMachine_NeedsNoAddress) {
  set({{"OMPI_COMM_WORLD_RANK", "1"},
       {"OMPI_COMM_WORLD_SIZE", "4"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  const RankInfo info = rank_info_from_environment();
  EXPECT_EQ(info.rank, 1);
  EXPECT_EQ(info.master_address, "127.0.0.1");
  EXPECT_EQ(info.master_port, 29500);
  EXPECT_FALSE(info.agent_store);
  set({{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_THAT(error(), Names({"MASTER_ADDR", "mpirun"}));
}

TEST_F(LaunchTest, Slurm_UsesFirstHostAsMaster) {
  set({{"SLURM_PROCID", "5"},
       {"SLURM_STEP_NUM_TASKS", "16"},
       {"SLURM_LOCALID", "1"},
       {"SLURM_STEP_NODELIST", "gpu[07-09,12],x1"},
       {"SLURM_JOB_ID", "123456"}});
  const RankInfo info = rank_info_from_environment();
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.master_address, "gpu07");
  EXPECT_EQ(info.master_port, 20000 + 3456);
  EXPECT_EQ(first_slurm_host("a,b"), "a");
  EXPECT_EQ(first_slurm_host("a"), "a");
  EXPECT_EQ(first_slurm_host("n[3,5]"), "n3");
  EXPECT_EQ(first_slurm_host("n[3]"), "n3");
}

TEST_F(LaunchTest, InvalidVariable_ErrorNamesIt) {
  set({{"RANK", "0"}});
  EXPECT_THAT(error(), Names({"WORLD_SIZE"}));
  set({{"WORLD_SIZE", "two"}});
  EXPECT_THAT(error(), Names({"WORLD_SIZE", 1, "two"}));
  set({{"WORLD_SIZE", "2"}, {"RANK", "2"}});
  EXPECT_THAT(error(), Names({"RANK", 0, 1, 2}));
  set({{"RANK", "1"}});
  EXPECT_THAT(error(), Names({"MASTER_ADDR"}));
  set({{"MASTER_ADDR", "host"}, {"MASTER_PORT", "70000"}});
  EXPECT_THAT(error(), Names({"MASTER_PORT", 1, 65535, 70000}));
}

}  // namespace
}  // namespace lazy::distributed
