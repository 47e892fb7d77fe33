// Messages on one connection between two processes of a job: a header, then the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace sextant {

// data: of a channel. abort: the job ends, with the reason. goodbye: this end sends no more. call, answer: who is there.
// here: this process has left what a lost one has ended; channel: the epoch, and whom it holds for gone. members: who goes on in
// a new epoch. left_out: the others go on without the one that reads this.
enum class MessageKind : std::uint32_t { data, abort, goodbye, call, answer, here, members, left_out };

constexpr std::uint32_t kMessagesMagic = 0x73787434;  // "sxt4": this version of the messages

struct MessageHeader {
  std::uint32_t magic = kMessagesMagic;  // both ends are in step
  MessageKind kind = MessageKind::data;
  std::uint64_t channel = 0;
  std::int64_t bytes = 0;
};

struct Message {
  MessageKind kind = MessageKind::data;
  std::uint64_t channel = 0;
  std::vector<std::byte> payload;
};

// Puts what comes together to messages. Asks for no more memory than twice what has come, and 1 MiB.
class Inflow {
 public:
  // Takes in what is there without waiting, `handle` each message that is whole. False when there will be no more: the other
  // end has gone, or sent something that is no message, which fault() then says.
  bool take_in(int fd, const std::function<void(Message&&)>& handle);
  const std::string& fault() const { return fault_; }
  // The other end was closed, by itself or by its system: not a machine or a network that answers no more.
  bool closed() const { return closed_; }

 private:
  bool begin_message();
  void grow();

  std::size_t got_ = 0;  // of the header, then of the payload
  bool in_payload_ = false, closed_ = false;
  MessageHeader header_;
  Message message_;
  std::string fault_;
};

// Sends all of it, in steps that never block: between them `go_on` says whether to go on. ended: the other end takes no more
// (errno). stopped: go_on said so; what follows on the connection would be taken for the rest of this message.
enum class Sent { all, ended, stopped };
Sent send_message(int fd, const MessageHeader&, const void* data, const std::function<bool()>& go_on);

}  // namespace sextant
